"""Statistics of privacy audits: lower bounds on ε from samples of releases.

An accountant computes an upper bound on ε. An audit computes a lower bound: it distinguishes two
neighbouring data sets by their releases, and a smaller ε would not allow this. If the lower bound
exceeds the claimed ε, the claim is false, except with the error probability of the bound.

* `bounds`: a test of one score against a threshold, and a test for Gaussian noise;
* `low_bits`: an attack on the least significant bits of a release;
* `one_run`: many canaries in one run (Steinke, Nasr and Jagielski 2023).
"""
