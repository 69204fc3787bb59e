from typing import TYPE_CHECKING
