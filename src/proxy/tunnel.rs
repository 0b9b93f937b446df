//! Bytes both ways between two streams, until both have ended or nothing has moved for too long.
//!
//! Each side ends by itself: when one has sent its last byte, the other is told so and may go on sending
//! (half-close). A direction borrows a buffer only while it has something to move, from a few that each
//! worker keeps: thousands of idle tunnels hold none. A direction that fills what it is given is given
//! more, up to 256 KiB, since for bulk the bytes per system call are what counts.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::core::time::Span;
use crate::deadline::Deadline;

const LARGEST: usize = 256 * 1024;
const SMALLEST: usize = 16 * 1024;
/// Buffers that a worker keeps while nobody uses them.
const SPARE: usize = 4;

thread_local! {
    static BUFFERS: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

fn borrow_buffer() -> Box<[u8]> {
    BUFFERS.with_borrow_mut(Vec::pop).unwrap_or_else(|| vec![0; LARGEST].into_boxed_slice())
}

fn return_buffer(buffer: Box<[u8]>) {
    BUFFERS.with_borrow_mut(|buffers| {
        if buffers.len() < SPARE {
            buffers.push(buffer);
        }
    });
}

/// One direction.
struct Flow {
    /// What was read and not yet written: its own copy, no longer than it has to be.
    left: Box<[u8]>,
    written: usize,
    /// How much is read at once.
    chunk: usize,
    state: FlowState,
    moved: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FlowState {
    Moving,
    Flushing,
    Ending,
    Ended,
}

impl Flow {
    fn starting_with(first: &[u8]) -> Flow {
        Flow { left: first.into(), written: 0, chunk: SMALLEST, state: FlowState::Moving, moved: 0 }
    }

    fn poll<R, W>(&mut self, cx: &mut Context<'_>, mut from: Pin<&mut R>, mut to: Pin<&mut W>) -> Poll<io::Result<()>>
    where
        R: AsyncRead,
        W: AsyncWrite,
    {
        loop {
            match self.state {
                FlowState::Moving => {
                    ready!(self.write_left(cx, to.as_mut()))?;
                    match self.read_and_write(cx, from.as_mut(), to.as_mut()) {
                        Poll::Pending => {
                            self.state = FlowState::Flushing;
                        }
                        Poll::Ready(Ok(true)) => {}
                        Poll::Ready(Ok(false)) => self.state = FlowState::Ending,
                        Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    }
                }
                // nothing to read now: what was written must not lie in a buffer meanwhile
                FlowState::Flushing => {
                    self.state = FlowState::Moving;
                    ready!(to.as_mut().poll_flush(cx))?;
                    return Poll::Pending;
                }
                FlowState::Ending => {
                    ready!(to.as_mut().poll_shutdown(cx))?;
                    self.state = FlowState::Ended;
                }
                FlowState::Ended => return Poll::Ready(Ok(())),
            }
        }
    }

    fn write_left<W: AsyncWrite>(&mut self, cx: &mut Context<'_>, mut to: Pin<&mut W>) -> Poll<io::Result<()>> {
        while self.written < self.left.len() {
            let count = ready!(to.as_mut().poll_write(cx, &self.left[self.written..]))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += count;
            self.moved += count as u64;
        }
        if !self.left.is_empty() {
            (self.left, self.written) = (Box::default(), 0);
        }
        Poll::Ready(Ok(()))
    }

    /// Moves one chunk through a borrowed buffer. `Ok(false)` is the end of the stream.
    fn read_and_write<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        from: Pin<&mut R>,
        mut to: Pin<&mut W>,
    ) -> Poll<io::Result<bool>>
    where
        R: AsyncRead,
        W: AsyncWrite,
    {
        let mut buffer = borrow_buffer();
        let mut read = ReadBuf::new(&mut buffer[..self.chunk]);
        let polled = from.poll_read(cx, &mut read);
        let count = read.filled().len();
        let mut written = 0;
        if polled.is_ready() {
            while written < count {
                match to.as_mut().poll_write(cx, &buffer[written..count]) {
                    Poll::Ready(Ok(step)) if step > 0 => written += step,
                    Poll::Ready(Ok(_)) => break,
                    Poll::Ready(Err(error)) => {
                        return_buffer(buffer);
                        return Poll::Ready(Err(error));
                    }
                    Poll::Pending => break,
                }
            }
        }
        if written < count {
            self.left = buffer[written..count].into();
            self.chunk = SMALLEST;
        } else if count == self.chunk {
            self.chunk = (self.chunk * 2).min(LARGEST);
        }
        self.moved += written as u64;
        return_buffer(buffer);
        ready!(polled)?;
        Poll::Ready(Ok(count > 0))
    }
}

/// How a tunnel ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Both sides have said their last.
    Closed,
    /// Nothing moved for the idle limit.
    Idle,
}

/// Copies both ways. `first` is what was read already, from downstream and from upstream, and goes first.
///
/// # Errors
///
/// When either stream fails; both are to be closed then.
pub async fn run<D, U>(downstream: D, upstream: U, first: [&[u8]; 2], idle_limit: Span) -> io::Result<Ended>
where
    D: AsyncRead + AsyncWrite,
    U: AsyncRead + AsyncWrite,
{
    let (mut downstream, mut upstream) = (pin!(downstream), pin!(upstream));
    let (mut up, mut down) = (Flow::starting_with(first[0]), Flow::starting_with(first[1]));
    let mut deadline = Deadline::after(idle_limit);
    let mut moved = 0;
    poll_fn(|cx| {
        let sent = up.poll(cx, downstream.as_mut(), upstream.as_mut())?;
        let received = down.poll(cx, upstream.as_mut(), downstream.as_mut())?;
        if sent.is_ready() && received.is_ready() {
            return Poll::Ready(Ok(Ended::Closed));
        }
        if moved != up.moved + down.moved {
            moved = up.moved + down.moved;
            deadline.reset(idle_limit);
        }
        deadline.poll(cx).map(|()| Ok(Ended::Idle))
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const LONG: Span = Span::seconds(60);

    #[tokio::test]
    async fn bytes_go_both_ways_and_each_side_ends_by_itself() {
        let (mut client, near) = tokio::io::duplex(1_000);
        let (far, mut origin) = tokio::io::duplex(1_000);
        let tunnel = tokio::spawn(async move { run(near, far, [b"first ", b""], LONG).await });
        client.write_all(b"then").await.expect("write");
        client.shutdown().await.expect("half-close");
        let mut request = String::new();
        origin.read_to_string(&mut request).await.expect("read to the end");
        assert_eq!(request, "first then");
        origin.write_all(b"answer after the end").await.expect("write");
        drop(origin);
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.expect("read to the end");
        assert_eq!(answer, "answer after the end");
        assert_eq!(tunnel.await.expect("no panic").expect("no error"), Ended::Closed);
    }

    #[tokio::test]
    async fn bulk_arrives_whole_through_small_pipes() {
        let (mut client, near) = tokio::io::duplex(64 * 1024);
        let (far, mut origin) = tokio::io::duplex(7_001);
        tokio::spawn(async move { run(near, far, [b"", b""], LONG).await });
        let sent: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
        let expected = sent.clone();
        tokio::spawn(async move {
            client.write_all(&sent).await.expect("write");
            client.shutdown().await.expect("half-close");
            let _ = client.read_to_end(&mut Vec::new()).await;
        });
        let mut received = Vec::new();
        origin.read_to_end(&mut received).await.expect("read");
        assert!(received == expected, "{} of {} bytes", received.len(), expected.len());
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_tunnel_ends() {
        let (_client, near) = tokio::io::duplex(10);
        let (far, _origin) = tokio::io::duplex(10);
        assert_eq!(run(near, far, [b"", b""], Span::seconds(5)).await.expect("no error"), Ended::Idle);
    }
}
