"""Load the bitstream of a board: `python -m fpga.flash --board ulx3s-85f`."""

import subprocess
from collections.abc import Sequence

from fpga import tools
from fpga.boards import board_names
from fpga.build import bitstream_of, chosen
from golden.errors import UserError, main_guard
from rtl.build import CommandParser

__all__ = ["main"]


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="python -m fpga.flash", description="Load the bitstream that fpga.build has made into a board, over USB."
    )
    parser.add_argument("--board", metavar="NAME", required=True, help=f"one of {', '.join(board_names())}")
    parser.add_argument("--preset", metavar="NAME", help="what it was built for, if not the board's own preset")
    parser.add_argument(
        "--keep", action="store_true", help="write it to the board's flash, so that it is there after power-up"
    )
    return parser


def _explain(output: str, board: str) -> str:
    """What to do about what openFPGALoader said."""
    said = output.lower()
    last = next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "it said nothing")
    if "libusb" in said and "shared" in said:
        return "openFPGALoader needs libusb: install it, for example with 'sudo apt-get install libusb-1.0-0'"
    if "permission" in said or "access denied" in said or "usb_open() failed (insufficient" in said:
        return f"no permission to open the USB cable of {board}: add a udev rule for it or run as root"
    if any(word in said for word in ("not found", "no device", "unable to open", "no cable", "usb_open", "jtag init")):
        return f"no {board} answers: connect its USB port and switch it on ({last})"
    return f"openFPGALoader could not load {board}: {last}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    options = _parser().parse_args(arguments)
    board = chosen(options.board, options.preset)
    path = bitstream_of(board)
    if not path.exists():
        raise UserError(f"there is no bitstream of {board.name}: build it with 'make fpga BOARD={options.board}'")
    command = [tools.program("openFPGALoader"), "-b", board.loader, *(["-f"] if options.keep else []), str(path)]
    print(" ".join(command), flush=True)
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    print(done.stdout, end="")
    if done.returncode != 0:
        raise UserError(_explain(done.stdout, board.name))
    return 0


if __name__ == "__main__":
    main_guard(main)()
