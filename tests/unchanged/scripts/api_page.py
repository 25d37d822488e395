"""The text that `make api` would write: `api_page.py docs/generate.py`."""

from __future__ import annotations

import runpy
import sys

if __name__ == "__main__":
    sys.stdout.write(runpy.run_path(sys.argv[1], run_name="generate_api")["generate"]())
