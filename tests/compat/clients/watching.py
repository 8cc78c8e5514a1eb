"""Watches a server with the published sie-sdk until it goes away: ``watching.py URL``. Says so at the first frame."""

import json
import sys

from sie_sdk import SIEClient

with SIEClient(sys.argv[1]) as client:
    for count, _ in enumerate(client.watch(), 1):
        if count == 1:
            print("watching", flush=True)
print(json.dumps({"frames": count}))
