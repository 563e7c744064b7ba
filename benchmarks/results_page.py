"""docs/results.md, its picture and the table of README.md, from the records of benchmarks/results.

    python benchmarks/results_page.py

A test makes all of it in memory and fails where the files have something else.
"""

from __future__ import annotations

from pathlib import Path

from methods_table import table_1
from quality_figure import draw
from result_runs import by_person, by_record, in_brief
from result_tables import (
    batched,
    debugging,
    digits,
    digits_methods,
    ensemble_cost,
    pate_gan,
    published,
    real,
    release_cost,
    samme_r,
    step_cost,
)

ROOT = Path(__file__).parent.parent
DOCS, README = ROOT / "docs", ROOT / "README.md"
BEGIN, END = "<!-- table -->", "<!-- end -->"
PAGE, PICTURE = DOCS / "results.md", DOCS / "quality.png"


def page() -> str:
    """The whole page."""
    return f"""# Results

<!-- made by `python benchmarks/results_page.py`: change the records or the program, not this file -->

Every table of this page is made from the records in `benchmarks/results`. A record has its command, commit and
machine; `published.json` holds what others report. What was tried, and why the settings are what they are:
[quality.md](quality.md), [ensemble.md](ensemble.md), [baselines.md](baselines.md), [choosing.md](choosing.md).

**Which epsilon.** Where nothing else is said, epsilon is at delta 1e-5, for one *record replaced* by any other,
towards the *public*, who gets everything in `release/`. It is that of one run, computed from its ledger; the search
for the settings is outside of it. Those of `refined` were chosen on held-out training images
of both sets. The other settings for MNIST were chosen on training images that were held out and are
the same for Fashion-MNIST; those for digits were chosen on its test images. All data sets of this page are public,
which is why figures computed on them are published.

**Which measure.** CNN: accuracy on the real test set of the paper's small CNN, trained on 60,000 synthetic images.
FID: 60,000 synthetic images against the training set, features in TF32. IS: Inception Score, by a classifier trained
on real images. Mean over the seeds, with their range. Seconds are those of training; "beside other work" means that
the GPU had other runs at the same time.

## All trainings on MNIST and Fashion-MNIST

{by_record()}

The rows `default`, `refined` (first results, [refined.md](refined.md)) and `ensemble` are presets of GS-WGAN, `paper`
is its published run (K = 1000, 20,000 steps, with a warm start of 200 iterations instead of 2,000), and the other
names are baselines. For `paper`, 610.3 is the guarantee, and no analysis can give less than 329.4.

![CNN accuracy and FID over epsilon, preset kernel](quality.png)

## What others report

{published()}

No public data was used by any of them. **Their epsilon is not ours.** Most state it for one record *added or
removed*, by Renyi accounting at delta = 1 / (n ln n); ours is for one record *replaced* at delta 1e-5. For the same
noise ours is larger, by a factor of about 1.8 to 2.1. The column in our relation is computed by our accountant
(privacy-loss distributions) from the published noise, sampling rate and number of steps. For FETA-Pro at 5 and 1 the
noise is not published; it is derived from the stated epsilon with the rate and steps of the run at 10. So FETA-Pro at
its 5 is what compares with ours at 10: 0.981 and FID 3.9 on MNIST, 0.860 and 16.1 on Fashion-MNIST. Their runs take 3
to 60 GPU-hours.

## The paper's Table 1, at one true epsilon

{table_1()}

In brackets is what the GS-WGAN paper reports for that method. Its epsilons are 10 as each run was accounted there,
and are not one relation: for its own GS-WGAN one record replaced, sampled without replacement, which does not hold
for that run (610.3 does); for DP-SGD GAN and DP-MERF by the same bound; for G-PATE dependent on the votes.
[baselines.md](baselines.md#what-is-true-and-what-was-claimed) recomputes each for one record replaced. CNN and FID
are of 60,000 synthetic images; IS, MLP and the 13 classifiers of 10,000. Calibrated: the share of what the same
classifiers reach on 10,000 real images. For `default` the classifiers are those of another run of the same plan. One
run each on the H200. PATE-GAN stalls on images, as the paper found. `gan` is the DP-SGD GAN without clip and noise,
and has no guarantee.

## Persons

{by_person()}

The unit is one person (writer). *Zeroed*: the person's contribution is removed and the number of persons stays;
*replaced*: it becomes any other. Observer: the public. A trusted aggregator adds the noise and sees every person's
sums, so there is no guarantee towards it; for `paper-federated` the server is not trusted, and the same figure holds
towards it if a client answers once a round (3,788 for Algorithm 2 as printed). MNIST's test set has other writers.
All clients were computed in one batch, without the network. The paper's Table 2 with bytes:
[federated.md](federated.md#table-2-on-our-data).

The paper's debugging task on `mnist-writers`: 270 of 539 writers' images are inverted, a public classifier tells who is
suspected, and each group gets a generator. Share of 2,000 generated images with a bright frame; epsilon for one writer
zeroed, observer: the public ([federated.md](federated.md#the-debugging-task)):

{debugging()}

## Real data

{real()}

The "Real" rows of the paper's tables: ours, and in brackets the paper's. They have no epsilon. The paper's AdaBoost
is SAMME.R, which has left scikit-learn; written out again it has {samme_r()}. XGBoost has the depth and step size
that were its defaults in 2020 (3 and 0.1). Made by `benchmarks/real_rows.py` and `benchmarks/real_classifiers.py`.

## Digits, 8x8

1,437 records. Logistic regression on 5,000 synthetic digits, tested on 360 real ones (`benchmarks/digits.py`):

{digits()}

All methods by `gswgan benchmark --data digits --methods all --epsilon 1,10 --seeds 1,2`, one thread beside other
work, five classifiers; mean ± standard deviation of two seeds; delta 1e-5, observer: the public:

{digits_methods()}

PATE-GAN at epsilon 10 with the remedies that the GS-WGAN paper tried (`benchmarks/pate_gan.py`, one run each):

{pate_gan()}

## Speed

K critics as one batched model against a loop over modules, updates per second in the same run
(`benchmarks/ensemble.py`):

{batched()}

A step of preset `ensemble-alone` on the H200 (width 32, 64 fakes per release; `benchmarks/ensemble_cost.py`):

{ensemble_cost()}

The kernel critic's one release on the H200, made images of 28x28 (`benchmarks/cost.py`):

{release_cost()}

A step of its generator, the ResNet of width 64 with nearest doubling, on the H200:

{step_cost()}

## Figures on other pages

IS and FID over epsilon, iterations and the number of critics, and the norms of gradients before and after clipping:
[ensemble.md](ensemble.md#the-papers-curves). Samples of both groups of the debugging task, and of the writers:
[federated.md](federated.md#the-debugging-task). Noise of both critics over the number of records:
[choosing.md](choosing.md#the-noise-of-both).
"""


def readme(text: str) -> str:
    """README.md with the table of these records between its marks."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{in_brief()}\n{END}{rest.split(END)[1]}"


def main() -> None:
    draw(PICTURE)
    PAGE.write_text(page())
    README.write_text(readme(README.read_text()))
    print(f"{PAGE}, {PICTURE} and the table of {README} are made")


if __name__ == "__main__":
    main()
