#!/bin/sh
# Replaces the Public Suffix List beside this script with the newest that the Python package
# `publicsuffixlist` carries: it is published with the list inside, unchanged, and reaches everyone
# who can install a Python package. Needs python3 with pip. Nothing changes when a check fails.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --dest "$tmp" publicsuffixlist
python3 -m zipfile -e "$tmp"/publicsuffixlist-*.whl "$tmp/unpacked"
new=$tmp/unpacked/publicsuffixlist/public_suffix_list.dat

for wanted in 'Mozilla Public' '^// VERSION: ' '===BEGIN ICANN DOMAINS===' '===END ICANN DOMAINS===' \
    '===BEGIN PRIVATE DOMAINS===' '===END PRIVATE DOMAINS==='; do
    grep -q -- "$wanted" "$new" || { echo "update-psl: the new list has no '$wanted'" >&2; exit 1; }
done
rules=$(grep -c '^[^/[:space:]]' "$new")
[ "$rules" -gt 9000 ] || { echo "update-psl: only $rules rules, the new list is cut short" >&2; exit 1; }

date=$(sed -n 's|^// VERSION: \([0-9-]*\).*|\1|p' "$new")
sed "s/^Date of this copy: .*/Date of this copy: $date/" "$here/README.md" > "$tmp/README.md"
cp "$new" "$here/public_suffix_list.dat"
cp "$tmp/README.md" "$here/README.md"
echo "public_suffix_list.dat: $date, $rules rules"
