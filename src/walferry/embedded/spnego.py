"""`python -m walferry.embedded.spnego URL REQUEST…`: WebHDFS by SPNEGO with the ticket in KRB5CCNAME.

URL is "http://host:port"; with several, separated by ";", the active name node answers. A REQUEST is "PUT
/folder?op=MKDIRS". The bodies of the answers are printed, a line each. It uses nothing of walferry's own client, which
the tests test.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import requests
from requests_gssapi import OPTIONAL, HTTPSPNEGOAuth


def main(webhdfs: str, asked: Sequence[str]) -> None:
    """Send the requests; ends with the answer of the first that is refused by all name nodes."""
    for request in asked:
        method, _, rest = request.partition(" ")
        for url in webhdfs.split(";"):
            # Another session for each: two name nodes on one host would get each other's cookies.
            login = HTTPSPNEGOAuth(mutual_authentication=OPTIONAL)
            answer = requests.request(method, f"{url}/webhdfs/v1{rest}", auth=login, timeout=60)
            if answer.ok:
                break
        else:
            sys.exit(f"{request}: {answer.status_code} {answer.text}")
        print(answer.text)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
