#!/usr/bin/env python3
"""States that are judged in a second, against the writes that were recorded.

    WEFT=target/release/weft scripts/crash/speed.py [--seconds 10] [--svg docs/plots/crash-states.svg]

The program overwrites as many pages of one file, of 4 KiB each, and makes nothing durable, so that a
state is any set of them; the model is ext4-ordered. The check is nothing (`true`, which the shell has
built in) or a pause of 5 ms. Prints a table in Markdown.
"""

import argparse
import json
import os
import subprocess
import tempfile

WRITES = [20, 50, 100, 200, 500, 1000, 2000]
CHECKS = ["true", "sleep 0.005"]
COLOURS = ["#0072b2", "#e69f00"]
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 380, 64, 16, 64, 52

PROGRAM = """
import os, sys
fd = os.open("f", os.O_RDWR)
for page in range(int(sys.argv[1])):
    os.pwrite(fd, os.urandom(4096), page * 4096)
"""


def rate(weft, writes, check, seconds, directory):
    with open(os.path.join(directory, "program.py"), "w") as file:
        file.write(PROGRAM)
    ran = subprocess.run(
        [weft, "crash", "run", "--json", "--quiet", "--model", "ext4-ordered", "--time", f"{seconds}s",
         "--states", "1000000000", "--setup", f"truncate -s {writes * 4096} f",
         "--run", f'python3 "$WEFT_CWD/program.py" {writes}', "--check", check],
        cwd=directory, stdout=subprocess.PIPE, check=True)
    model = json.loads(ran.stdout)["models"][0]
    return model["progress"]["judged"] / model["seconds"]


def svg(rates):
    top = max(max(line) for line in rates)
    step = next(s for s in (50, 100, 200, 500, 1000) if top / s <= 8 or s == 1000)
    full = -(-top // step) * step
    x = lambda place: LEFT + (WIDTH - LEFT - RIGHT) * (place + 0.5) / len(WRITES)
    y = lambda value: TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / full)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
           'font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
           f'<text x="{LEFT}" y="22" font-size="15">States judged in a second, by recorded writes</text>']
    for place, check in enumerate(CHECKS):
        left = LEFT + 170 * place
        out.append(f'<rect x="{left}" y="34" width="12" height="12" fill="{COLOURS[place]}"/>'
                   f'<text x="{left + 18}" y="45">--check \'{check}\'</text>')
    for tick in range(int(full / step) + 1):
        line = y(tick * step)
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{line:.1f}" y2="{line:.1f}" '
                   f'stroke="#ddd"/><text x="{LEFT - 6}" y="{line + 4:.1f}" '
                   f'text-anchor="end">{tick * step}</text>')
    for place, writes in enumerate(WRITES):
        out.append(f'<text x="{x(place):.1f}" y="{HEIGHT - BOTTOM + 18}" '
                   f'text-anchor="middle">{writes}</text>')
    out.append(f'<text x="{(WIDTH + LEFT) / 2:.1f}" y="{HEIGHT - 10}" '
               'text-anchor="middle">writes</text>')
    for line, colour, check in zip(rates, COLOURS, CHECKS):
        points = " ".join(f"{x(place):.1f},{y(value):.1f}" for place, value in enumerate(line))
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for place, value in enumerate(line):
            out.append(f'<circle cx="{x(place):.1f}" cy="{y(value):.1f}" r="3" fill="{colour}">'
                       f'<title>{check}, {WRITES[place]} writes: {value:.0f}</title></circle>')
    return "\n".join(out + ["</svg>", ""])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=10, help="for each point")
    parser.add_argument("--svg", help="draw the table into this file")
    arguments = parser.parse_args()
    weft = os.environ.get("WEFT", "weft")
    if os.path.sep in weft:
        weft = os.path.abspath(weft)
    rates = []
    with tempfile.TemporaryDirectory() as directory:
        for check in CHECKS:
            rates.append([rate(weft, writes, check, arguments.seconds, directory) for writes in WRITES])
    print("| writes | " + " | ".join(map(str, WRITES)) + " |")
    print("|---|" + "---:|" * len(WRITES))
    for check, line in zip(CHECKS, rates):
        print(f"| states a second, `--check '{check}'` | " + " | ".join(f"{r:.0f}" for r in line) + " |")
    if arguments.svg:
        with open(arguments.svg, "w") as file:
            file.write(svg(rates))


main()
