"""Rank 1's logger draws the traceback with the values of variables, and then the script exits.

nproc: 2
culprit: 1
kind: exception | exit_code
hint: rank 1
seconds: 30
"""

import linecache
import sys
import time

import numpy as np

import torsh_runtime as tr


class Logger:
    """The look of a well-known logging package."""

    def write(self, level, message):
        stamp = time.strftime("%Y-%m-%d %H:%M:%S.000")
        sys.stderr.write(f"{stamp} | {level:<8} | {__name__}:main:0 - {message}\n")

    def info(self, message):
        self.write("INFO", message)

    def catch(self, function):
        def wrapped():
            try:
                function()
            except Exception as error:
                self.write("ERROR", f"An error has been caught in function '{function.__name__}':")
                self.draw(error)
                sys.exit(1)

        return wrapped

    def draw(self, error):
        lines, trace = ["Traceback (most recent call last):", ""], error.__traceback__
        while trace:
            code, number = trace.tb_frame.f_code, trace.tb_lineno
            source = linecache.getline(code.co_filename, number).strip()
            lines.append(f'> File "{code.co_filename}", line {number}, in {code.co_name}')
            lines.append(f"    {source}")
            for name, value in list(trace.tb_frame.f_locals.items())[:3]:
                if name in source:
                    lines.append(f"    {' ' * source.index(name)}└ {value!r:.60}")
            lines.append("")
            trace = trace.tb_next
        lines.append(f"{type(error).__name__}: {error}")
        sys.stderr.write("\n".join(lines) + "\n")


logger = Logger()


def crop(image, size):
    height, width = image.shape
    top = np.random.default_rng(0).integers(0, height - size)
    return image[top : top + size, :size]


@logger.catch
def main():
    tr.init_process_group()
    rank = tr.get_rank()
    for step in range(8):
        side = 20 if rank == 1 and step == 5 else 64
        patch = crop(np.ones((side, side)), size=32)
        total = patch.sum(keepdims=True)
        tr.all_reduce(total)
    logger.info("done")
    tr.destroy_process_group()


main()
