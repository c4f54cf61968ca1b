"""A browser, as far as a login needs one: goes where it is sent, follows redirects, and writes down what it was given.

BROWSER="python tests/auth/browser.py NOTES %s"
"""

import json
import sys
import urllib.request
from pathlib import Path

with Path(sys.argv[1]).open("a") as notes:
    notes.write(json.dumps(sys.argv[2:]) + "\n")
with urllib.request.urlopen(sys.argv[2], timeout=10) as page:
    shown = page.read().decode()
with Path(sys.argv[1]).open("a") as notes:
    notes.write(json.dumps([page.status, shown]) + "\n")
