"""What an operator is: schemas, packed contexts and their states."""

from mobopt.ops import schemas as schemas
