"""Audits: compare the claimed ε of a configuration with empirical lower bounds."""

from tacit.auditing.audit import Audit, Finding, audit
from tacit.auditing.party import AuditedParty

__all__ = ["Audit", "AuditedParty", "Finding", "audit"]
