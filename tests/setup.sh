#!/bin/sh
# Brings what the tests need beside Rust and a C compiler: curl, sqlite3, and a Python with requests and urllib3.
# Python packages go into target/venv and nowhere else. Missing system packages are installed where this
# runs as root on Debian or a relative of it; elsewhere they are named. Node and Java are optional: without them the
# tests with these clients are skipped.
set -eu
cd "$(dirname "$0")/.."

missing=
command -v curl >/dev/null || missing="$missing curl"
command -v sqlite3 >/dev/null || missing="$missing sqlite3"
command -v python3 >/dev/null || missing="$missing python3"
python3 -c 'import ensurepip, venv' 2>/dev/null || missing="$missing python3-venv"

if [ -n "$missing" ]; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "the tests need:$missing" >&2
        exit 1
    fi
    echo "installing:$missing"
    apt-get update -qq
    # shellcheck disable=SC2086 # a list of words
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $missing >/dev/null
fi

for optional in node java; do
    command -v "$optional" >/dev/null || echo "optional, and not here: $optional"
done

venv=target/venv
if ! "$venv/bin/python" -c 'import requests, urllib3' 2>/dev/null; then
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check requests urllib3
fi
