"""Audits: empirical lower bounds on ε of a configuration's releases, beside the claim."""

from tacit.auditing.audit import Audit, Finding, audit
from tacit.auditing.party import AuditedParty

__all__ = ["Audit", "AuditedParty", "Finding", "audit"]
