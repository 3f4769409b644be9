"""Configuration: frozen models that are checked before anything is opened."""

from mainstay.config.redact import redact_url, secrets_of_url
from mainstay.config.spec import TLS, ServerSpec, Timeouts

__all__ = ["TLS", "ServerSpec", "Timeouts", "redact_url", "secrets_of_url"]
