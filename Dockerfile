# Fusebox in a container. Build: docker build -t fusebox .  How to run it: README.md, "In a container".

# Both stages are Debian bookworm: a binary needs at least the libc that it was built against.
FROM rust:1-slim-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked --bin fusebox

FROM debian:bookworm-slim
# ca-certificates: the roots that upstream TLS is verified against. Not pinned, since roots are to be new.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --user-group --no-create-home --home-dir /var/lib/fusebox --shell /usr/sbin/nologin fusebox \
 && install -d -o fusebox -g fusebox -m 0700 /var/lib/fusebox \
 && install -d -m 0755 /etc/fusebox
COPY --from=build /src/target/release/fusebox /usr/local/bin/fusebox

# Inside a container the proxy has to listen on every address to be reached from outside of it. Who may use it
# is then a matter of allow_clients: private networks and the container itself, nobody from the Internet. The
# admin port stays on the container's loopback address.
ENV FUSEBOX_PROXY__LISTEN=0.0.0.0:3128 \
    FUSEBOX_PROXY__ALLOW_CLIENTS=127.0.0.0/8,10.0.0.0/8,172.16.0.0/12,192.168.0.0/16 \
    FUSEBOX_DATA_DIR=/var/lib/fusebox

# a config.toml that is mounted here is used
WORKDIR /etc/fusebox
USER 10001:10001
VOLUME /var/lib/fusebox
EXPOSE 3128
ENTRYPOINT ["fusebox"]
CMD ["serve"]
