"""Statistics of privacy audits: lower bounds on ε from samples of releases.

An accountant bounds ε from above; an audit bounds it from below, by distinguishing two neighbouring
data sets better than a smaller ε would allow. If a lower bound exceeds the claim, the claim is
false, except with the small error probability of the bound.

* `bounds`: Clopper–Pearson bounds of a threshold test, and the Gaussian bound of a projection;
* `low_bits`: what the least significant bits of a release reveal;
* `one_run`: many canaries in one run (Steinke, Nasr and Jagielski 2023).
"""
