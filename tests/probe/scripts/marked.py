"""A user's training without a framework: `steps` marks its steps, or `step` with --manual."""

import sys
import time

import scaling_probe


def train(batch):
    time.sleep(0.01)


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
    main()
