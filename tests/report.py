"""What `make verify` and `make bench` share: a table, row by row, of which nothing that is finished is lost.

What takes long goes through ``labkit.sweep.run``: its cache is what a stopped run goes on from.
"""

import sys


def show(head, rows):
    """Print each row as soon as it is known; all of them."""
    print(head)
    found = []
    for row in rows:
        print(row, flush=True)
        found.append(row)
    return found


def run(main):
    """The exit code of ``main(arguments)`` as a command; Ctrl-C is one line."""
    try:
        return main(sys.argv[1:])
    except KeyboardInterrupt:
        print("\nstopped: what is finished is kept, and the same command goes on from there", file=sys.stderr)
        return 130
