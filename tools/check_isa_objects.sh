#!/bin/sh
# Refuses weak symbols in the objects that are compiled for one instruction set level. A linker keeps
# one copy of a weak function, maybe the AVX-512 one, and a processor without AVX-512 dies in it.
#   tools/check_isa_objects.sh LIBOPFUSE_OPS.A LEVEL...      (NM: the nm to use)
# Every kernel text must show exactly its table, opfuse::ops::LEVEL::name, and nothing else.
set -eu
archive=$1
shift
[ -s "$archive" ] || { echo "check_isa_objects: expected an archive, found none at $archive" >&2; exit 1; }
symbols=$("${NM:-nm}" -C --defined-only "$archive")
status=0
count=0
for level in "$@"; do
  tables=$(printf '%s\n' "$symbols" | grep -c " [BDR] opfuse::ops::$level::[a-z0-9_]*\$" || true)
  [ "$tables" -gt 0 ] || { echo "check_isa_objects: level $level: expected a table of kernels, found none"; status=1; }
  count=$((count + tables))
done
# One object per table: the archive lists "name.cc.o:" before the symbols of each object.
wrong=$(printf '%s\n' "$symbols" | awk '
  /\.o:$/ { object = $0; next }
  / [VWuw] / { weak[object] = weak[object] "\n    " $0 }
  / [BDR] opfuse::ops::(generic|avx2|avx512|avx512bf16)::/ { kernel[object] = 1 }
  END { for (o in kernel) if (o in weak) print o weak[o] }')
if [ -n "$wrong" ]; then
  printf 'check_isa_objects: expected no weak symbol beside a table, found\n%s\n' "$wrong"
  status=1
fi
echo "check_isa_objects: $count tables in $# levels$([ $status = 0 ] && echo ', no weak symbol')"
exit $status
