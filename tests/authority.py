"""A certificate authority of tests' own: signs servers and clients, renews them, and is trusted by nobody else."""

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

START = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
END = datetime.datetime(2120, 1, 1, tzinfo=datetime.UTC)


class Authority:
    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        self._number = 0
        self.file = folder / f"{name}.pem"
        certificate = self._builder(self._name, self._key).add_extension(x509.BasicConstraints(True, 0), critical=True)
        self.file.write_bytes(_pem(certificate.sign(self._key, hashes.SHA256())))

    def sign(self, name: str, host: str = "127.0.0.1") -> tuple[Path, Path]:
        """A certificate of its own for whoever is called so, and its key; signed again it is another."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host)), x509.DNSName("localhost")])
        certificate = self._builder(_named(name), key).add_extension(names, critical=False)
        paths = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        paths[0].write_bytes(_pem(certificate.sign(self._key, hashes.SHA256())))
        plain = serialization.NoEncryption()
        form = serialization.PrivateFormat.PKCS8
        paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))
        return paths

    def client(self, name: str = "") -> ssl.SSLContext:
        """Of a client that trusts this authority alone, and shows a certificate if it has a name."""
        context = ssl.create_default_context(cafile=str(self.file))
        if name:
            context.load_cert_chain(*self.sign(name))
        return context

    def _builder(self, name: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        self._number += 1
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(self._name).public_key(key.public_key())
        return builder.serial_number(self._number).not_valid_before(START).not_valid_after(END)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
