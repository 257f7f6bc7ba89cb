"""Images: CIFAR-10 (Krizhevsky 2009), MNIST (LeCun et al. 1998), and further sets that models of
images are merged on. The splits are those of FusionBench (arXiv:2406.03280).
"""

from functools import partial

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
DIGITS = tuple("0123456789")
CIFAR10 = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)

task(vision("vision/cifar10", image="img", labels=CIFAR10, source="uoft-cs/cifar10"))
task(vision("vision/mnist", labels=DIGITS, source="ylecun/mnist"))
task(vision("vision/svhn", labels=DIGITS, source="ufldl-stanford/svhn", subset="cropped_digits"))
