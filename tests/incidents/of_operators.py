"""Incidents of operation: certificates, log files, models that do not load, versions without workers."""

from __future__ import annotations

import json
import signal
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import requests
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.e2e.running_server import RunningServer, model_folder
from tests.incidents.scenes import WELL, Scene, is_well, metric


def write_certificate(folder: Path, name: str, lifetime: timedelta) -> None:
    """Write ``cert.pem`` and ``key.pem`` in a folder, each in one step; ``name`` is who the certificate is for."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + lifetime)
        .sign(key, hashes.SHA256())
    )
    pem, kind = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    written = {
        "key.pem": key.private_bytes(pem, kind, serialization.NoEncryption()),
        "cert.pem": certificate.public_bytes(pem),
    }
    for file, content in written.items():
        new = folder / f"{file}.new"
        new.write_bytes(content)
        new.replace(folder / file)


def shown_name(url: str) -> str:
    """Return whom the certificate of a listener is for."""
    address = urlsplit(url)
    pem = ssl.get_server_certificate((str(address.hostname), int(address.port or 0)), timeout=10)
    (name,) = x509.load_pem_x509_certificate(pem.encode()).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(name.value)


def certificate_is_renewed(scene: Scene) -> None:
    """The certificate is about to expire, and is renewed on disk."""
    write_certificate(scene.directory, "old", timedelta(days=1))
    files = {"certificate_file": scene.directory / "cert.pem", "private_key_file": scene.directory / "key.pem"}
    server = RunningServer(properties=files)
    secure = server.inference.replace("http:", "https:")
    text = server.config.read_text().replace(f"inference_address={server.inference}", f"inference_address={secure}")
    server.config.write_text(text)
    with server:
        soon = 7 * 86_400
        scene.detect(lambda: 0 < metric(server, "ts_certificate_expiry_seconds") < soon, "the metric shows the expiry")
        scene.expect(shown_name(secure) == "old", "the first certificate")
        write_certificate(scene.directory, "new", timedelta(days=90))
        scene.heal(lambda: shown_name(secure) == "new", "the new certificate is used")
        scene.expect(metric(server, "ts_certificate_expiry_seconds") > soon, "the metric shows the new expiry")


def log_files_are_rotated(scene: Scene) -> None:
    """Logrotate renames the log files and creates new ones."""
    model = model_folder(scene.directory, "m", WELL)
    server = RunningServer({"m": model})
    server.command.insert(0, "setsid")  # without a terminal, as under a service manager
    with server:
        server.wait_ready()
        file = server.directory / "logs" / "access_log.log"
        file.rename(file.with_suffix(".1"))
        file.touch()
        scene.detect(lambda: is_well(server, "m") and file.exists(), "the new file is there")
        scene.heal(lambda: is_well(server, "m") and "/predictions/m" in file.read_text(), "lines are in the new file")
        assert server.process is not None
        server.process.send_signal(signal.SIGHUP)
        scene.expect(is_well(server, "m") and server.process.poll() is None, "SIGHUP ends nothing")


def model_cannot_be_loaded(scene: Scene) -> None:
    """A model's code does not load; then somebody mends it."""
    folder = model_folder(scene.directory, "m", "raise ImportError('a package is missing')\n", "minWorkers: 1\n")
    with RunningServer({"m": folder}) as server:
        scene.detect(
            lambda: metric(server, "ts_workers_wanted") > 0 and metric(server, "ts_workers_ready") == 0,
            "a worker is wanted and none is ready",
        )
        scene.lost += not is_well(server, "m")
        (module,) = folder.glob("*.py")
        text = module.with_suffix(".new")
        text.write_text(WELL)
        text.replace(module)
        scene.heal(lambda: is_well(server, "m"), "the model is loaded")


def version_without_workers_becomes_default(scene: Scene) -> None:
    """Somebody makes a version the default that has no worker."""
    model = model_folder(scene.directory / "one", "m", WELL)
    second = model_folder(scene.directory / "two", "m", WELL)
    manifest = second / "MAR-INF" / "MANIFEST.json"
    manifest.parent.mkdir()
    about = {"modelName": "m", "modelVersion": "2.0", "handler": "handler.py"}
    manifest.write_text(json.dumps({"runtime": "python", "model": about, "archiverVersion": "0.12.0"}))
    with RunningServer({"m": model}) as server:
        server.wait_ready()
        registered = server.register(second, model_name="m", initial_workers=0)
        scene.expect(registered.status_code == 200, registered.text)
        answer = requests.put(f"{server.management}/models/m/2.0/set-default", timeout=180)
        scene.detect(lambda: answer.status_code == 409 or not is_well(server, "m"), "it is refused")
        scene.lost += not is_well(server, "m")
        scene.heal(lambda: is_well(server, "m"), "the model answers")
