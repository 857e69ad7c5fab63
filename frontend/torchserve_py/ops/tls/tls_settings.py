"""The settings of keys and certificates."""

from collections.abc import Iterator, Mapping
from typing import Annotated

from torchserve_py.base.settings.schemas.values import ANY_TEXT
from torchserve_py.base.settings.table import Effective, Name, OptionalPath, SettingsSection, setting
from torchserve_py.ops.tls.needed_files import PEM_FILES, missing_files


class TlsSettings(SettingsSection):
    """Where the key and the certificate are."""

    keystore: OptionalPath = setting(None, "key store with the TLS key and certificate")
    keystore_pass: Annotated[str, ANY_TEXT] = setting("changeit", "password of the key store", repr=False)
    keystore_type: Name = setting("PKCS12", "`PKCS12` or `JKS`")
    private_key_file: OptionalPath = setting(None, "private key for TLS, PEM")
    certificate_file: OptionalPath = setting(None, "certificate chain for TLS, PEM")

    @classmethod
    def contradictions(cls, effective: Mapping[str, Effective]) -> Iterator[str]:
        """Yield a line for each file that https listeners need and that is not there."""
        values = {name: each.value for name, each in effective.items()}
        addresses = (values.get(f"{endpoint}_address") for endpoint in ("inference", "management", "metrics"))
        if any(address is not None and address.is_tls for address in addresses):
            if values.get("keystore") is not None:
                yield from missing_files(effective, ("keystore",), "https needs its file")
            elif any(values.get(name) is not None for name in PEM_FILES):  # else the server makes a certificate
                yield from missing_files(effective, PEM_FILES, f"https with {' and '.join(PEM_FILES)} needs both")
