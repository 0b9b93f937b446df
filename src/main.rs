//! The `fusebox` program: everything is in the library.

/// A proxy makes and drops many small things for each request; this allocator does that in about a third of
/// the instructions that the system's needs.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    fusebox::cli::main()
}
