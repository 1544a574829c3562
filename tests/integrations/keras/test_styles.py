"""However a Keras program is written, it gives on two replicas what it gives on one device."""

import pytest

from tests.integrations.keras.problem import mirrored, require_equal
from tests.integrations.keras.styles import STYLES
from tests.tiers import full_only

QUICK = {"subclassed", "two_optimizers"}

pytestmark = [
    pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64"),
    pytest.mark.filterwarnings("ignore:Your input ran out of data"),
    pytest.mark.filterwarnings("ignore:Layer InputLayer does not have a `quantize` method"),
]


@pytest.mark.quick
@pytest.mark.parametrize("name", [n if n in QUICK else full_only(n) for n in STYLES])
def test_a_program_gives_what_it_gives_on_one_device(name: str) -> None:
    require_equal(STYLES[name], mirrored(2))
