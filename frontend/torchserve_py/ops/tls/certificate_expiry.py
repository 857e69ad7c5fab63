"""When a certificate in PEM expires, read from its DER without a library: PEM files need no package besides Python."""

import ssl
from typing import Final

_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"
_EXPLICIT_VERSION: Final = 0xA0
#: What comes before the validity in a certificate: serial number, algorithm, issuer.
_BEFORE_VALIDITY: Final = 3


def expiry_of(pem: str) -> float:
    """Return when the first certificate expires (seconds since 1970). Raises ValueError: there is no certificate."""
    start, end = pem.find(_BEGIN), pem.find(_END)
    if start < 0 or end < start:
        raise ValueError("there is no certificate in PEM")
    der = ssl.PEM_cert_to_DER_cert(pem[start : end + len(_END)])
    _, certificate, _ = _element(der, 0)
    _, signed, _ = _element(certificate, 0)
    kind, _, place = _element(signed, 0)
    for _ in range(_BEFORE_VALIDITY if kind == _EXPLICIT_VERSION else _BEFORE_VALIDITY - 1):
        _, _, place = _element(signed, place)
    _, validity, _ = _element(signed, place)
    _, _, place = _element(validity, 0)
    _, not_after, _ = _element(validity, place)
    text = not_after.decode("ascii")
    if len(text) == len("YYMMDDhhmmssZ"):  # RFC 5280: from 50 on it is the last century
        text = ("19" if text >= "50" else "20") + text
    month = "JanFebMarAprMayJunJulAugSepOctNovDec"[int(text[4:6]) * 3 - 3 :][:3]
    readable = f"{month} {text[6:8]} {text[8:10]}:{text[10:12]}:{text[12:14]} {text[:4]} GMT"
    return float(ssl.cert_time_to_seconds(readable))


def _element(data: bytes, place: int) -> tuple[int, bytes, int]:
    """Return the tag, the content and the end of the element that begins at a place. Raises ValueError: it is cut."""
    try:
        tag, size, place = data[place], data[place + 1], place + 2
    except IndexError:
        raise ValueError("the certificate is cut") from None
    if size & 0x80:
        length = size & 0x7F
        size, place = int.from_bytes(data[place : place + length], "big"), place + length
    if place + size > len(data):
        raise ValueError("the certificate is cut")
    return tag, data[place : place + size], place + size
