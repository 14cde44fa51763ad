#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# generated.sh BUILD: docs/ops.md, docs/performance.md and docs/performance/ are what the tool and the
# result files say.
set -eu
cd "$(dirname "$0")/../.."
exec tools/docs --check "$1/mica"
