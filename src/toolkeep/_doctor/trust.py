"""TLS: does the certificate hold, and if not, what is wrong with it?

Judged by OpenSSL's own codes. What a bad certificate says of itself is read on a connection that
carries nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from typing import Any, cast

from toolkeep._doctor.case import Case
from toolkeep._doctor.faults import Fault, Step
from toolkeep._doctor.finding import Seen, Trouble
from toolkeep._doctor.network import Way, connected, tunnel
from toolkeep._wire.tls import context_for

_EXPIRED, _NOT_YET = 10, 9
_SELF_SIGNED = (18, 19)
_OTHER_NAME = (62, 64)
"""X509_V_ERR_… of OpenSSL, the same since 1.0.2."""
_NO_CHECK_TIME, _PARTIAL_CHAIN = 0x200000, 0x80000
"""X509_V_FLAG_…"""

_SHOWN_NAMES = 6
Certificate = dict[str, Any]


async def shake_hands(case: Case, way: Way) -> Seen:
    if way.proxy.startswith("https:"):
        return Seen("inside the proxy's own TLS: tried with HTTP", skipped=True)
    context = context_for(case.spec.tls)
    try:
        version, certificate = await _greet(case, way, context)
    except TimeoutError:
        raise await _no_tls(case, way, f"no TLS handshake within {case.wait:g} s") from None
    except ssl.SSLCertVerificationError as error:
        raise await _mistrust(case, way, error) from None
    except (OSError, EOFError) as error:
        reason = (
            getattr(error, "reason", None) or error.strerror if isinstance(error, OSError) else ""
        )
        raise await _no_tls(case, way, f"TLS failed: {reason or 'the connection ended'}") from None
    verified = "" if case.spec.tls.verify else "; not verified, as tls.verify says"
    return Seen(f"{version}{_validity(certificate)}{verified}")


async def _greet(case: Case, way: Way, context: ssl.SSLContext) -> tuple[str, Certificate]:
    """The version that was agreed on, and the certificate, if it was verified."""
    async with connected(case, way) as streams:
        if way.proxy:
            await tunnel(case, way, streams)
        writer = streams[1]
        async with asyncio.timeout(case.wait):
            await writer.start_tls(context, server_hostname=case.host)
        found = cast("ssl.SSLObject", writer.get_extra_info("ssl_object"))
        return found.version() or "TLS", cast("Certificate", found.getpeercert() or {})


def _validity(certificate: Certificate) -> str:
    until = certificate.get("notAfter")
    if not until:
        return ""
    days = (ssl.cert_time_to_seconds(until) - time.time()) / 86400
    return f", certificate valid for {days:.0f} more days"


# -- what is wrong ------------------------------------------------------------------------------


async def _mistrust(case: Case, way: Way, error: ssl.SSLCertVerificationError) -> Trouble:
    shown = await _peer(case, way)
    code = error.verify_code
    if code in _OTHER_NAME:
        return _other_name(case, shown)
    if code in (_EXPIRED, _NOT_YET):
        return _out_of_time(case, shown, expired=code == _EXPIRED)
    issuer = _named(shown.get("issuer"))
    own = code in _SELF_SIGNED and shown.get("issuer") == shown.get("subject")
    remedy = (
        f"Name the {'certificate' if own else 'authority'}'s file in {case.place('tls.ca_file')}, "
        "or in SSL_CERT_FILE"
    )
    if own:
        cause = f"the certificate of {case.host} is signed by itself, and nothing here trusts it"
        return Trouble(Fault.TLS_SELF_SIGNED, cause, remedy)
    cause = f"nothing here trusts the issuer of the certificate of {case.host}"
    cause += f", {issuer!r}" if issuer else f": {error.verify_message}"
    return Trouble(Fault.TLS_ISSUER, cause, f"{remedy}; or have the server send its whole chain")


def _named(parts: Any) -> str:
    """The common name, or the organisation, in a name as `getpeercert` has it."""
    found = dict(pair for part in parts or () for pair in part)
    return str(found.get("commonName") or found.get("organizationName") or "")


def _other_name(case: Case, shown: Certificate) -> Trouble:
    names = [str(value) for _, value in shown.get("subjectAltName", ())]
    listed = ", ".join(names[:_SHOWN_NAMES]) or "no name at all"
    cause = f"the certificate is not for {case.host!r}: it is for {listed}"
    remedy = f"Use one of its names in {case.place('url')}, or have one made for {case.host!r}"
    return Trouble(Fault.TLS_NAME, cause, remedy)


def _out_of_time(case: Case, shown: Certificate, *, expired: bool) -> Trouble:
    now = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    if expired:
        cause = f"the certificate of {case.host} expired on {shown.get('notAfter', 'some day')}"
        remedy = f"Have it renewed; if it is newer than that, set this machine's clock ({now})"
        return Trouble(Fault.TLS_EXPIRED, cause, remedy)
    cause = f"the certificate of {case.host} is valid only from {shown.get('notBefore', 'later')}"
    return Trouble(Fault.TLS_NOT_YET, cause, f"Set this machine's clock right: it says {now}")


async def _peer(case: Case, way: Way) -> Certificate:
    """What a certificate that is not trusted says of itself: it is taken for its own authority."""
    anything = _blind()
    with contextlib.suppress(OSError, EOFError, TimeoutError, Trouble, ValueError):
        async with connected(case, way) as streams:
            if way.proxy:
                await tunnel(case, way, streams)
            async with asyncio.timeout(case.wait):
                await streams[1].start_tls(anything, server_hostname=case.host)
            der = streams[1].get_extra_info("ssl_object").getpeercert(binary_form=True)
        itself = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        itself.check_hostname = False
        itself.verify_flags |= _NO_CHECK_TIME | _PARTIAL_CHAIN
        itself.load_verify_locations(cadata=ssl.DER_cert_to_PEM_cert(der))
        return (await _greet(case, way, itself))[1]
    return {}


def _blind() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def _no_tls(case: Case, way: Way, seen: str) -> Trouble:
    if not way.proxy and await speaks_plain_http(case, way):
        cause = f"port {way.port} of {way.host} speaks plain HTTP, and 'url' says https"
        remedy = f"Write http:// in {case.place('url')}, or use the server's TLS port"
        return Trouble(Fault.TLS_TO_PLAIN, cause, remedy, seen=seen)
    return _failed(case, seen, Step.TLS)


def _failed(case: Case, cause: str, step: Step) -> Trouble:
    remedy = f"See whether the server wants a client certificate ({case.place('tls.client_cert')})"
    remedy += ", and which versions of TLS it knows"
    return Trouble(Fault.TLS_FAILED, cause, remedy, step=step)


async def second_thoughts(case: Case, way: Way) -> Trouble | None:
    """With TLS 1.3 a server judges our certificate only after our side of the handshake is over.
    Whoever takes it leaves the connection open until something is asked."""
    how = "without a word"
    try:
        async with connected(case, way) as streams:
            if way.proxy:
                await tunnel(case, way, streams)
            async with asyncio.timeout(min(case.wait, 3.0)):
                await streams[1].start_tls(context_for(case.spec.tls), server_hostname=case.host)
                if await streams[0].read(1):
                    return None
    except (TimeoutError, Trouble):
        return None
    except OSError as error:
        how = getattr(error, "reason", None) or error.strerror or how
    cause = f"the server ends a TLS connection before anything is asked: {how}"
    return _failed(case, cause, Step.HTTP)


async def speaks_plain_http(case: Case, way: Way) -> bool:
    with contextlib.suppress(OSError, EOFError, TimeoutError, Trouble):
        async with connected(case, way) as (reader, writer):
            writer.write(f"HEAD / HTTP/1.0\r\nHost: {way.host}\r\n\r\n".encode("latin-1"))
            async with asyncio.timeout(min(case.wait, 3.0)):
                return (await reader.readexactly(5)) == b"HTTP/"
    return False


async def speaks_tls(case: Case, way: Way) -> bool:
    with contextlib.suppress(OSError, EOFError, TimeoutError, Trouble):
        async with asyncio.timeout(min(case.wait, 3.0)):
            await _greet(case, way, _blind())
            return True
    return False
