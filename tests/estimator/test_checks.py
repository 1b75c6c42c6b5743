"""scikit-learn's own checks of an estimator."""

from functools import partial

import pytest
from sklearn.utils.estimator_checks import check_classifiers_classes, parametrize_with_checks

from momatch import MoMatchClassifier, NetworkOptions
from momatch.estimator import EXPECTED_FAILED_CHECKS
from tests.estimator.conftest import SMALL

#: Enough for the problems that the checks pose, and all of them together in seconds.
QUICK = {"steps": 30, "network": NetworkOptions(**SMALL)}

#: One check uses -1 as a class, which here marks unlabelled samples. scikit-learn exempts its own semi-supervised classifiers
#: from that part, by the name under which a check runs; the same exemption is asked for here.
SEMI_SUPERVISED = "LabelSpreading"


@parametrize_with_checks([MoMatchClassifier(**QUICK)])
@pytest.mark.usefixtures("unchecked")
def test_sklearn_check(estimator, check):
    if check.func is check_classifiers_classes:
        check = partial(check.func, SEMI_SUPERVISED)
    check(estimator)


@pytest.mark.usefixtures("unchecked")
def test_with_another_marker_minus_one_is_a_class_like_any_other():
    check_classifiers_classes("MoMatchClassifier", MoMatchClassifier(**QUICK, unlabeled=None))


@pytest.mark.usefixtures("unchecked")
def test_the_check_that_is_said_to_fail_does():
    assert [*EXPECTED_FAILED_CHECKS] == [check_classifiers_classes.__name__]
    with pytest.raises((AssertionError, ValueError)):
        check_classifiers_classes("MoMatchClassifier", MoMatchClassifier(**QUICK))
