"""Statistics of privacy audits: lower bounds on ε from samples of releases.

An accountant bounds ε from above; an audit bounds it from below, by telling two neighbouring data
sets apart better than a smaller ε would allow. A lower bound above the claim means that the claim
is false, or that the bound's small error probability came true.

* `bounds`: Clopper–Pearson bounds of a threshold test, and the Gaussian bound of a projection;
* `low_bits`: what the least significant bits of a release reveal;
* `one_run`: many canaries in one run (Steinke, Nasr and Jagielski 2023).
"""
