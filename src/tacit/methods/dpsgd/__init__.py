"""Differentially private stochastic gradient descent on the variational objective."""
