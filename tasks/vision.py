"""Images: CIFAR-10 (Krizhevsky 2009), and `vision8`, the eight data sets on which image models are
usually merged (Ilharco et al. 2023, arXiv:2212.04089).

Repositories, splits and class names are those of FusionBench (arXiv:2406.03280,
fusion_bench/tasks/clip_classification), whose repositories on the Hub have these names in this
order in their headers. Long lists of classes are in vision.txt.
"""

from functools import partial
from pathlib import Path

from harness import Hyperparameters, Task, task

vision = partial(
    Task,
    kind="classification",
    text=(),
    image="image",
    label="label",
    metrics=("accuracy",),
    splits={"test": "test"},
    reported="test",
    finetune=Hyperparameters(learning_rate=1e-4, max_length=1),
)
vision8 = partial(vision, group="vision vision8")
DIGITS = tuple("0123456789")
CIFAR10 = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
PARTS = Path(__file__).with_name("vision.txt").read_text("utf-8").split("# ")[1:]
CLASSES = {name: tuple(classes) for name, *classes in map(str.splitlines, PARTS)}

task(vision("vision/cifar10", image="img", labels=CIFAR10, source="uoft-cs/cifar10"))
task(vision8("vision/mnist", labels=DIGITS, source="ylecun/mnist"))
task(vision8("vision/svhn", labels=DIGITS, source="ufldl-stanford/svhn", subset="cropped_digits"))
for name, classes in CLASSES.items():
    task(vision8(f"vision/{name}", labels=classes, source=f"tanganke/{name}"))
