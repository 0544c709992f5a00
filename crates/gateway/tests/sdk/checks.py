"""What the Python tests of the SDKs share: the settings, and a list of checks of which none is left out silently.

Settings come from the environment:
  BASE_URL         http://HOST:PORT of the server, without /v1
  API_KEY          the key to call it with
  MODEL            the model to ask; EMBEDDING_MODEL likewise
  USAGE            "words" if the server counts a word as a token (the mock upstream); else numbers are only compared
  HOLDFAST         "1" if the server is Holdfast: its headers, its refusals and its money are checked
  POOR_KEY         a key of an account with too little money (needs HOLDFAST)
  INPUT_PRICE, OUTPUT_PRICE   dollars per million tokens; CREDITS_PER_USD, 100 if not said: then costs are checked exactly
  UPSTREAM_URL     http://HOST:PORT of the mock upstream behind MODEL, to script it; none with a model that is built in
  SKIP             names of checks to leave out, separated by commas
"""

import json
import os
import sys
import traceback
import urllib.request
import uuid
from decimal import ROUND_DOWN, Decimal

BASE_URL = os.environ["BASE_URL"].rstrip("/")
API_KEY = os.environ["API_KEY"]
MODEL = os.environ["MODEL"]
EMBEDDING_MODEL = os.environ.get("EMBEDDING_MODEL", "")
COUNTS_WORDS = os.environ.get("USAGE") == "words"
IS_HOLDFAST = os.environ.get("HOLDFAST") == "1"
UPSTREAM_URL = os.environ.get("UPSTREAM_URL", "")
POOR_KEY = os.environ.get("POOR_KEY", "")
PRICES = [os.environ.get(name) for name in ("INPUT_PRICE", "OUTPUT_PRICE")]
SKIP = [name for name in os.environ.get("SKIP", "").split(",") if name]

_checks = []


def check(needs=lambda: None):
    """Marks a check; `needs` answers why it cannot run here, or nothing."""

    def mark(function):
        _checks.append((function.__name__, needs, function))
        return function

    return mark


def holdfast():
    return None if IS_HOLDFAST else "needs HOLDFAST=1"


def poor_key():
    return holdfast() or (None if POOR_KEY else "needs POOR_KEY")


def upstream():
    return None if UPSTREAM_URL else "needs UPSTREAM_URL"


def script(**line):
    """Tells the upstream what to do with one call; returns the tag (`user`) that this call must have."""
    tag = f"sdk-{uuid.uuid4()}"
    body = json.dumps([{**line, "tag": tag}]).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{UPSTREAM_URL}/__script", data=body), timeout=10) as answer:
        assert answer.status == 200, answer.status
    return tag


def embedding_model():
    return None if EMBEDDING_MODEL else "needs EMBEDDING_MODEL"


def run(title):
    """Runs all checks and says what became of each; fails if one failed or if a name in SKIP is of none."""
    ran, skipped, failed = 0, 0, 0
    for name, needs, function in _checks:
        why = "named in SKIP" if name in SKIP else needs()
        if why:
            skipped += 1
            print(f"SKIP {title} {name}: {why}")
            continue
        try:
            function()
        except Exception:
            failed += 1
            traceback.print_exc()
            print(f"FAIL {title} {name}")
        else:
            ran += 1
            print(f"ok   {title} {name}")
    unknown = [name for name in SKIP if name not in [known for known, _, _ in _checks]]
    for name in unknown:
        print(f"FAIL {title} {name}: named in SKIP, and there is no such check")
    print(f"{title}: {ran} ok, {skipped} skipped, {failed + len(unknown)} failed")
    sys.exit(1 if failed or unknown or not ran else 0)


def words(text):
    return len(text.split())


def cost(input_tokens, output_tokens):
    """What so many tokens cost in credits, rounded down at the sixth place; None if the prices are not known."""
    if None in PRICES:
        return None
    input_price, output_price = (Decimal(price) for price in PRICES)
    usd = (input_tokens * input_price + output_tokens * output_price) / Decimal(1_000_000)
    credits = usd * Decimal(os.environ.get("CREDITS_PER_USD", "100"))
    return credits.quantize(Decimal("0.000001"), rounding=ROUND_DOWN)


def check_headers(headers, input_tokens, output_tokens):
    """Holdfast's own headers: there, well formed, and the cost is the usage at its price."""
    assert headers.get("x-holdfast-request-id"), dict(headers)
    charged, balance = (Decimal(headers[f"x-holdfast-{name}-cu"]) for name in ("cost", "balance"))
    assert charged >= 0 and balance >= 0, (charged, balance)
    expected = cost(input_tokens, output_tokens)
    assert expected is None or charged == expected, (charged, expected)
