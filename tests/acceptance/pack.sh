#!/usr/bin/env bash
# Packs what finds out about a machine with a GPU: pack.sh DIRECTORY BACKEND...; `make bench-gpu` calls it.
#
# For each backend a directory with the program and the tests, stripped; beside them the runner, what PyTorch runs, Gloo,
# and the files that tests read.
set -euo pipefail
to=$1
shift
rm -rf "$to"
mkdir -p "$to/lib" "$to/tests"
for backend in "$@"; do
    features=gloo
    [ "$backend" = flex ] || features="$features,$backend"
    built=$("${CARGO:-cargo}" test --release --no-run --test engine --test ops --features "$features" \
        --message-format=json)
    "${CARGO:-cargo}" build --release --bin train --features "$features"
    mkdir "$to/$backend"
    for tests in engine ops; do
        program=$(sed -n 's/.*"name":"'$tests'".*"executable":"\([^"]*\)".*/\1/p' <<<"$built" | tail -n 1)
        cp "$program" "$to/$backend/$tests"
    done
    cp "$(dirname "$program")/../train" "$to/$backend/train"
    strip "$to/$backend"/*
    if [ "$backend" = tch ]; then
        cat "$LIBTORCH/build-version" 2>/dev/null >"$to/tch/libtorch" ||
            sed -n "s/^__version__ = '\(.*\)'/\1/p" "$LIBTORCH/version.py" >"$to/tch/libtorch"
    fi
done
# Gloo, and what it needs beyond what PyTorch needs, too.
cp -L $(ldd "$to/$1/train" | awk '/lib(gloo|hiredis|ibverbs|nl-)/ { print $3 }') "$to/lib"
cp tests/acceptance/*.py tests/benches/peer.py "$to"
cp -r tests/fixtures "$to/tests"
tar cJf "$to.tar.xz" "$to"
size=$(stat --format=%s "$to.tar.xz")
rm -r "$to"
echo "$to.tar.xz: $((size / 1000000)) MB"
if [ "$size" -gt 60000000 ]; then
    echo "a bundle has at most 60 MB" >&2
    exit 1
fi
