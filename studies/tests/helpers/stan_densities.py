"""Log-densities of the Stan files, written again with NumPy and SciPy from the files alone.

Each takes the data and the parameters under Stan's names, on their own scale, and leaves out no
term that depends on a parameter. Nothing of tacit or NumPyro is used here.
"""

import numpy as np
from scipy import stats
from scipy.special import expit, gammaln

norm, cauchy, student = stats.norm.logpdf, stats.cauchy.logpdf, stats.t.logpdf


def blr(d, beta, sigma):
    prior = norm(beta, 0, 10).sum() + norm(sigma, 0, 10)
    return prior + norm(d["y"], d["X"] @ beta, sigma).sum()


def diamonds(d, b, Intercept, sigma):
    centred = d["X"][:, 1:] - d["X"][:, 1:].mean(0)
    prior = norm(b, 0, 1).sum() + student(Intercept, 3, 8, 10) + student(sigma, 3, 0, 10)
    return prior + norm(d["Y"], Intercept + centred @ b, sigma).sum()


def log10earn_height(d, beta, sigma):
    return norm(np.log10(d["earn"]), beta[0] + beta[1] * d["height"], sigma).sum()


def logearn_height(d, beta, sigma):
    return norm(np.log(d["earn"]), beta[0] + beta[1] * d["height"], sigma).sum()


def logearn_height_male(d, beta, sigma):
    mean = beta[0] + beta[1] * d["height"] + beta[2] * d["male"]
    return norm(np.log(d["earn"]), mean, sigma).sum()


def logearn_interaction(d, beta, sigma):
    inter = d["height"] * d["male"]
    mean = beta[0] + beta[1] * d["height"] + beta[2] * d["male"] + beta[3] * inter
    return norm(np.log(d["earn"]), mean, sigma).sum()


def logearn_logheight_male(d, beta, sigma):
    mean = beta[0] + beta[1] * np.log(d["height"]) + beta[2] * d["male"]
    return norm(np.log(d["earn"]), mean, sigma).sum()


def eight_schools_noncentered(d, theta_trans, mu, tau):
    theta = theta_trans * tau + mu
    prior = norm(theta_trans).sum() + norm(mu, 0, 5) + cauchy(tau, 0, 5)
    return prior + norm(d["y"], theta, d["sigma"]).sum()


def kidscore_momhs(d, beta, sigma):
    mean = beta[0] + beta[1] * d["mom_hs"]
    return cauchy(sigma, 0, 2.5) + norm(d["kid_score"], mean, sigma).sum()


def kidscore_momiq(d, beta, sigma):
    mean = beta[0] + beta[1] * d["mom_iq"]
    return cauchy(sigma, 0, 2.5) + norm(d["kid_score"], mean, sigma).sum()


def kidscore_momhsiq(d, beta, sigma):
    mean = beta[0] + beta[1] * d["mom_hs"] + beta[2] * d["mom_iq"]
    return cauchy(sigma, 0, 2.5) + norm(d["kid_score"], mean, sigma).sum()


def kidscore_interaction_c(d, beta, sigma):
    hs, iq = d["mom_hs"] - d["mom_hs"].mean(), d["mom_iq"] - d["mom_iq"].mean()
    mean = beta[0] + beta[1] * hs + beta[2] * iq + beta[3] * (hs * iq)
    return norm(d["kid_score"], mean, sigma).sum()


def kidscore_interaction_z(d, beta, sigma):
    def z(column):  # Stan's sd divides by N - 1
        off = column - column.mean()
        return off / (2 * np.sqrt((off**2).sum() / (len(column) - 1)))

    hs, iq = z(d["mom_hs"]), z(d["mom_iq"])
    mean = beta[0] + beta[1] * hs + beta[2] * iq + beta[3] * (hs * iq)
    return norm(d["kid_score"], mean, sigma).sum()


def kidscore_mom_work(d, beta, sigma):
    shift = {1: 0.0, 2: beta[1], 3: beta[2], 4: beta[3]}
    mean = [beta[0] + shift[work] for work in d["mom_work"].tolist()]
    return norm(d["kid_score"], mean, sigma).sum()


def kilpisjarvi(d, alpha, beta, sigma):
    prior = norm(alpha, d["pmualpha"], d["psalpha"]) + norm(beta, d["pmubeta"], d["psbeta"])
    return prior + norm(d["y"], alpha + beta * d["x"], sigma).sum()


def low_dim_gauss_mix(d, mu, sigma, theta):
    prior = norm(sigma, 0, 2).sum() + norm(mu, 0, 2).sum() + stats.beta.logpdf(theta, 5, 5)
    first = np.log(theta) + norm(d["y"], mu[0], sigma[0])
    second = np.log1p(-theta) + norm(d["y"], mu[1], sigma[1])
    return prior + np.logaddexp(first, second).sum()


def logmesquite(d, beta, sigma):
    names = ("diam1", "diam2", "canopy_height", "total_height", "density")
    mean = beta[0] + sum(b * np.log(d[n]) for b, n in zip(beta[1:6], names, strict=True))
    return norm(np.log(d["weight"]), mean + beta[6] * d["group"], sigma).sum()


def _mesquite(d):
    volume = np.log(d["diam1"] * d["diam2"] * d["canopy_height"])
    return volume, np.log(d["diam1"] * d["diam2"]), np.log(d["diam1"] / d["diam2"])


def logmesquite_logva(d, beta, sigma):
    volume, area, _ = _mesquite(d)
    mean = beta[0] + beta[1] * volume + beta[2] * area + beta[3] * d["group"]
    return norm(np.log(d["weight"]), mean, sigma).sum()


def logmesquite_logvas(d, beta, sigma):
    volume, area, shape = _mesquite(d)
    mean = beta[0] + beta[1] * volume + beta[2] * area + beta[3] * shape
    mean = mean + beta[4] * np.log(d["total_height"]) + beta[5] * np.log(d["density"])
    return norm(np.log(d["weight"]), mean + beta[6] * d["group"], sigma).sum()


def logmesquite_logvash(d, beta, sigma):
    volume, area, shape = _mesquite(d)
    mean = beta[0] + beta[1] * volume + beta[2] * area + beta[3] * shape
    mean = mean + beta[4] * np.log(d["total_height"]) + beta[5] * d["group"]
    return norm(np.log(d["weight"]), mean, sigma).sum()


def logmesquite_logvolume(d, beta, sigma):
    return norm(np.log(d["weight"]), beta[0] + beta[1] * _mesquite(d)[0], sigma).sum()


def nes(d, beta, sigma):
    age = d["age_discrete"]
    mean = beta[0] + beta[1] * d["real_ideo"] + beta[2] * d["race_adj"]
    mean = mean + beta[3] * (age == 2) + beta[4] * (age == 3) + beta[5] * (age == 4)
    mean = mean + beta[6] * d["educ1"] + beta[7] * d["gender"] + beta[8] * d["income"]
    return norm(d["partyid7"], mean, sigma).sum()


def wells_dist100ars_model(d, alpha, beta):
    chance = expit(alpha + beta[0] * d["dist"] / 100.0 + beta[1] * d["arsenic"])
    return np.where(d["switched"] == 1, np.log(chance), np.log1p(-chance)).sum()


def GLMM_Poisson_model(d, alpha, beta1, beta2, beta3, eps, sigma):  # noqa: N802 - the file's name
    year = d["year"]
    rate = alpha + beta1 * year + beta2 * year**2 + beta3 * year**3 + eps
    likelihood = d["C"] * rate - np.exp(rate) - gammaln(d["C"] + 1)
    return norm(eps, 0, sigma).sum() + likelihood.sum()


def radon_hierarchical_intercept_noncentered(d, alpha_raw, beta, mu_alpha, sigma_alpha, sigma_y):
    alpha = mu_alpha + sigma_alpha * alpha_raw
    prior = norm(sigma_alpha) + norm(sigma_y) + norm(mu_alpha, 0, 10)
    prior += norm(beta, 0, 10).sum() + norm(alpha_raw).sum()
    mean = alpha[d["county_idx"] - 1] + d["log_uppm"] * beta[0] + d["floor_measure"] * beta[1]
    return prior + norm(d["log_radon"], mean, sigma_y).sum()


def radon_variable_intercept_slope_noncentered(
    d, sigma_y, sigma_alpha, sigma_beta, alpha_raw, beta_raw, mu_alpha, mu_beta
):
    alpha, beta = mu_alpha + sigma_alpha * alpha_raw, mu_beta + sigma_beta * beta_raw
    prior = norm(sigma_y) + norm(sigma_beta) + norm(sigma_alpha)
    prior += norm(mu_alpha, 0, 10) + norm(mu_beta, 0, 10)
    prior += norm(alpha_raw).sum() + norm(beta_raw).sum()
    county = d["county_idx"] - 1
    mean = alpha[county] + d["floor_measure"] * beta[county]
    return prior + norm(d["log_radon"], mean, sigma_y).sum()


def election88_full(d, beta, a, b, c, d_, e, sigma_a, sigma_b, sigma_c, sigma_d, sigma_e):
    groups = ((a, sigma_a), (b, sigma_b), (c, sigma_c), (d_, sigma_d), (e, sigma_e))
    prior = norm(beta, 0, 100).sum() + sum(norm(x, 0, s).sum() for x, s in groups)
    black, female = d["black"], d["female"]
    logit = beta[0] + beta[1] * black + beta[2] * female
    logit = logit + beta[4] * female * black + beta[3] * d["v_prev_full"]
    logit = logit + a[d["age"] - 1] + b[d["edu"] - 1] + c[d["age_edu"] - 1]
    logit = logit + d_[d["state"] - 1] + e[d["region_full"] - 1]
    chance = expit(logit)
    return prior + np.where(d["y"] == 1, np.log(chance), np.log1p(-chance)).sum()
