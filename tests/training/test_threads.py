import pytest
import torch
from threadpoolctl import threadpool_info

from momatch.training.threads import one_thread


def blas_threads():
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


def test_one_thread_inside_and_as_before_outside():
    before = torch.get_num_threads(), blas_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
        assert set(blas_threads()) <= {1}
    assert (torch.get_num_threads(), blas_threads()) == before


def test_as_before_after_an_error():
    before = torch.get_num_threads()
    with pytest.raises(KeyError), one_thread():
        raise KeyError
    assert torch.get_num_threads() == before
