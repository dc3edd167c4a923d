#!/usr/bin/env bash
# Draws the pictures of the README from a real run: the dashboard as SVG, the report page as PNG.
#
# Needs tmux, chromium and Python with `rich` and `pillow`: `make pictures` installs the last two.
# Arguments: the program, the Python with these packages, the directory for the pictures.
set -euo pipefail
train="$(realpath "$1")" python="$(realpath --no-symlinks "$2")" to="$(realpath "$3")"
place="$(mktemp -d)"
session="kiln-pictures-$$"
trap 'tmux kill-session -t "$session" 2>/dev/null || true; rm -rf "$place"' EXIT
cd "$place"

tmux new-session -d -s "$session" -x 124 -y 32 "'$train' experiment=quickstart --progress tui"
# Past the middle there is something to see.
until tmux capture-pane -p -t "$session" | grep -q 'epoch 5/6'; do
    tmux has-session -t "$session" || { echo "the run ended before its picture was taken" >&2; exit 1; }
    sleep 0.2
done
tmux capture-pane -e -p -t "$session" >dashboard.txt
while tmux has-session -t "$session" 2>/dev/null; do sleep 0.2; done

"$python" - dashboard.txt "$to/dashboard.svg" <<'PY'
import io, re, sys
from rich.console import Console
from rich.text import Text
from rich.terminal_theme import MONOKAI
console = Console(record=True, width=124, file=io.StringIO(), force_terminal=True)
console.print(Text.from_ansi(open(sys.argv[1]).read().rstrip("\n")), end="")
picture = console.export_svg(title="train experiment=quickstart", theme=MONOKAI)
# A page of a code host loads no fonts from elsewhere.
picture = re.sub(r"@font-face {.*?}\n", "", picture, flags=re.S)
open(sys.argv[2], "w").write(picture)
PY

chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --force-device-scale-factor=1 \
    --window-size=1100,760 --screenshot=report.png "file://$place/runs/0001/report.html" 2>/dev/null
"$python" - report.png "$to/report.png" <<'PY'
import sys
from PIL import Image
Image.open(sys.argv[1]).convert("P", palette=Image.ADAPTIVE, colors=128).save(sys.argv[2], optimize=True)
PY
ls -l "$to/dashboard.svg" "$to/report.png"
