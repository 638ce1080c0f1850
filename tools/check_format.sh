#!/usr/bin/env bash
# Names every C++ and Python file that the formatters would change and every shell file that does
# not parse; --fix rewrites them instead. Ignored files (.gitignore) are left alone.
# The formatters are those of deps/pip-check.txt in .venv, never the machine's own.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$PWD/.venv/bin
[ -x "$bin/clang-format" ] && [ -x "$bin/ruff" ] ||
  { echo "tools/check_format.sh: expected clang-format and ruff in .venv: make check sets them up" >&2; exit 1; }

list() { git ls-files -z --cached --others --exclude-standard -- "$@"; }
count() { list "$@" | tr -cd '\0' | wc -c; }
cxx=('*.cc' '*.h' '*.inl' '*.cu')
python=('*.py')
shell=('*.sh' .ci/run)

status=0
if [ "${1:-}" = --fix ]; then
  list "${cxx[@]}" | xargs -0 -r "$bin/clang-format" -i
  list "${python[@]}" | xargs -0 -r "$bin/ruff" check -q --fix || status=1
  list "${python[@]}" | xargs -0 -r "$bin/ruff" format -q
else
  while IFS= read -r -d '' file; do
    "$bin/clang-format" "$file" | cmp -s - "$file" || { echo "Would reformat: $file"; status=1; }
  done < <(list "${cxx[@]}")
  list "${python[@]}" | xargs -0 -r "$bin/ruff" check -q --output-format concise || status=1
  list "${python[@]}" | xargs -0 -r "$bin/ruff" format --check -q || status=1
fi
while IFS= read -r -d '' file; do bash -n "$file" || status=1; done < <(list "${shell[@]}")
echo "check_format: $(count "${cxx[@]}") C++, $(count "${python[@]}") Python, $(count "${shell[@]}") shell files: $([ $status = 0 ] && echo right || echo 'see above; make format puts most of it right')"
exit $status
