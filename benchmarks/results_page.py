"""docs/results.md, its picture and the table of README.md, from the records of benchmarks/results.

    python benchmarks/results_page.py

A test makes all of it in memory and fails where the files have something else.
"""

from __future__ import annotations

from pathlib import Path

from methods_table import averages, table_1
from quality_figure import draw
from result_pictures import larger_sides, pictures, silos
from result_runs import by_person, by_record, in_brief, ranges, zeroed
from result_tables import (
    canaries,
    debugging,
    digits,
    digits_methods,
    published,
    real,
    samme_r,
    speed,
    wire,
)

ROOT = Path(__file__).parent.parent
DOCS, README = ROOT / "docs", ROOT / "README.md"
BEGIN, END = "<!-- table -->", "<!-- end -->"
PAGE, PICTURE = DOCS / "results.md", DOCS / "quality.png"


def page() -> str:
    """The whole page."""
    return f"""# Results

<!-- made by `python benchmarks/results_page.py`: change the records or the program, not this file -->

Made from the records in `benchmarks/results`, each with command, commit and machine.

Epsilon is at delta 1e-5, for one *record replaced*, towards the *public*, unless said otherwise. It is that of one
run, computed from its ledger; the search for settings, on held-out training images of MNIST (`refined`: of both sets;
digits: on its test images), is outside of it. All data sets are public. CNN: accuracy on the real test set after
training on 60,000 synthetic images. FID: of these against the training set.

## MNIST and Fashion-MNIST

{by_record()}

One seed and one H200 unless said otherwise; means of three seeds {ranges()}. A star means a shared GPU, a dash not
measured. `gan` has no guarantee. For `paper` (warm start of 200 iterations instead of 2,000) no analysis can give
less than 329.4.

![CNN accuracy and FID over epsilon, preset kernel](quality.png)

## What others report

{published()}

None of them used public data. **Their epsilon is not ours**: most state it for one record *added or removed*, by
Renyi accounting at delta = 1/(n ln n). Bold is the same noise in our relation, from the published noise, rate and
steps (FETA-Pro at 5 and 1: derived from its epsilon); "above" means not recomputed. DP-MERF's relation is that of its
authors' bound, DP-Kernel's that of its accountant. FETA-Pro at 5 compares with ours at 10. In their unit, with n
public and a record *zeroed* (`--neighbours zeroed`), ours are, one seed:

{zeroed()}

## The paper's Table 1

{table_1()}

Ours at a true epsilon of 10 (`paper`: 610.3), one run each. In brackets the GS-WGAN paper's figures at 10 as
accounted there: one record replaced for GS-WGAN, DP-SGD GAN and DP-MERF, dependent on the votes for G-PATE
([methods.md](methods.md#baselines-claimed-and-true)). IS and the 13 classifiers are of 10,000 images; on MNIST and
Fashion-MNIST the 13 average {averages("default")} with `kernel` and {averages("ensemble")} with `ensemble`.

## Colour

{pictures()}

One seed; as many synthetic images as records; "held out": 2,000 training images that the run did not see. With VGG19
(first picture; some cells are ghosts of two) and with `refined` (second) nuclei and granules look like those of cells.
With `refined` some have torn edges, and three kinds look alike.

![Synthetic blood cells, kernel critic with VGG19, 1,500 steps, a row for each kind](blood-cells-vgg19.png)

![Synthetic blood cells of preset refined](blood-cells-refined.png)

Larger images, preset `kernel` on two busy cores:

{larger_sides()}

## Silos

{silos()}

Records protected, delta 1e-5, one record of one site replaced; a generator from the released sums, one seed. Sites hold
equal parts ("even") or 4 of 10 classes each ("skewed"). The same data at one site, which a trusted aggregator's sum
equals: `kernel` above (blood cells on two cores 0.808). Rounds over Flower, with TLS and a process per site, took 79 to
112 s; `verify --site` agreed at each site. By files and over Flower the same keys give the same bytes
(`tests/federated`).

## Persons

{by_person()}

One writer *zeroed* or *replaced*, towards the public; `mnist-writers` has 539 and 10 classes, `femnist-writers` 60
and 36. Towards the trusted aggregator there is no guarantee; for `paper-federated` the server is untrusted, and the
figure holds towards it (3,788 as printed). All clients were computed in one batch. The paper's Table 2 (866 clients,
delta 1.15e-3) has IS 11.25 and FID 60.8 for GS-WGAN (claimed 598.6, one client replaced; true 774.3), 10.88 and 218.2
for Fed-Avg GAN (claimed 9.99e6, one client zeroed; true 115,200).

![Digits after 539 writers, epsilon 10](mnist-writers-epsilon-10.png)

Bytes on the wire per client and round, MNIST's shape (the paper: 1.5e5 and 3.94e7 per step for GS-WGAN and Fed-Avg
GAN):

{wire()}

Debugging task: 270 of 539 writers' images are inverted and each group gets a generator. Share of images with a bright
frame, at this true epsilon for both generators (delta 1e-5, one writer zeroed): {debugging()}.

![Samples of both groups: kernel critic, Algorithm 2, Fed-Avg GAN with noise 0.01, 0.1 and 0.5](debugging.png)

## Real data

{real()}

IS and FID of the test set; in brackets the paper's. Its AdaBoost is SAMME.R, which scikit-learn no longer has;
written again it has {samme_r()}.

## Digits, 8x8

Logistic regression on 5,000 synthetic digits at epsilon 10, three seeds: {digits()}. All methods by `gswgan
benchmark`, two seeds:

{digits_methods()}

## Audits with canaries

{canaries()}

Lower bounds on epsilon at 95 % from one training in the white box; 0 means that the attack saw nothing; without their
leak the planted ones show 0. From samples alone no bound is above 0.

## Speed

{speed()}

## Curves of the ensemble

Preset `ensemble-alone`, one seed, 10,000 images (`benchmarks/curves.py`). More iterations, less noise and more
critics help; the kernel critic is ahead everywhere.

![IS and FID over epsilon and over the number of critics, MNIST](curves-mnist.png)

![IS and FID over epsilon and over the number of critics, Fashion-MNIST](curves-fashion-mnist.png)

Norms of what is clipped: the critics' gradients lie near 1 by themselves, those of DP-SGD are 5 to 30 times the clip.

![Norms of gradients before and after clipping, MNIST](gradient-norms-mnist.png)

![Norms of gradients before and after clipping, Fashion-MNIST](gradient-norms-fashion-mnist.png)
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
