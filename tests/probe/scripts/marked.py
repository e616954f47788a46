"""A user's training without a framework: `steps` marks its steps, or `step` with --manual.

Writes the beginning and the end of each step, and when it ended itself, to the file that follows --times.
"""

import json
import sys
import time
from pathlib import Path

import scaling_probe

steps = []


def train(batch):
    begin = time.perf_counter()
    time.sleep(0.01)
    steps.append((begin, time.perf_counter()))


def main():
    loader = [[0.0] * 8] * 12
    for _ in range(10):
        if "--manual" in sys.argv:
            for batch in loader:
                train(batch)
                scaling_probe.step(samples=len(batch))
        else:
            for batch in scaling_probe.steps(loader, samples=len):
                train(batch)
        time.sleep(0.05)
    print("the script's last line")


if __name__ == "__main__":
    try:
        main()
    finally:
        if "--times" in sys.argv:
            times = {"steps": steps, "end": time.perf_counter()}
            Path(sys.argv[sys.argv.index("--times") + 1]).write_text(json.dumps(times))
