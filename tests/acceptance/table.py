"""The end of a course: a table for people, and the exit code."""

import shutil
import textwrap

WORDS = {"ok": "right", "wrong": "WRONG", "too long": "NO ANSWER", "slow": "slow", "left out": "left out"}


def conclude(course):
    lines = ["", *cards(course), "", f"{'part':<11} {'backend':<7} {'':<9} {'seconds':>7}"]
    for part in course.parts:
        head = f"{part['part']:<11} {part['backend']:<7} {WORDS[part['state']]:<9} {part['seconds']:>7.1f}  "
        texts = [part["why"]] if part["why"] else [row["text"] for row in part["rows"] if row.get("text")]
        width = max(shutil.get_terminal_size((200, 24)).columns - len(head), 40)
        texts = [line for text in texts for line in textwrap.wrap(text, width, subsequent_indent="  ")]
        lines += [head + (texts[0] if texts else ""), *(" " * len(head) + text for text in texts[1:])]
    lines += times(course)
    bad = [part for part in course.parts if part["state"] in ("wrong", "too long")]
    names = ", ".join(f"{part['part']} {part['backend']}".strip() for part in bad)
    lines += ["", f"not right: {names}" if bad else "all numbers that were due are right", f"files in {course.out}"]
    text = "\n".join(lines)
    print(text)
    course.log.write(text + "\n")
    course.save()
    return 1 if bad else 0


def cards(course):
    facts = course.machine
    torch = facts.get("torch") or {}
    found = [f"{facts.get('system')}, {facts.get('cores')} cores", *facts.get("cards", [])]
    return found + ([f"PyTorch {torch['torch']}, CUDA {torch['cuda']}"] if torch else [])


def times(course):
    """Milliseconds of a step, the range over the rounds, and the card's peak memory, by case and contestant."""
    rows = [row for part in course.parts if part["part"] == "steps" for row in part["rows"]]
    rows = [row for row in rows if row["ms"]]
    if not rows:
        return []
    lines = ["", f"{'step':<16} {'ms':>9} {'range':>17} {'n':>2} {'to the best PyTorch':>20} {'GiB':>6}"]
    for row in rows:
        stem, pixels, batch, precision = row["case"]
        lines.append(f"{stem} stem, {pixels} pixels, batch {batch}, {precision}")
        for name, ms in row["ms"].items():
            low, high = row["spread"][name]
            ratio = f"{row['ratio'][name]:.2f}" if name in row["ratio"] else ""
            memory = f"{row['memory'][name]:.2f}" if row["memory"][name] else "-"
            between = f"{low:.1f}-{high:.1f}"
            lines.append(f"  {name:<14} {ms:>9.1f} {between:>17} {row['n'][name]:>2} {ratio:>20} {memory:>6}")
    return lines
