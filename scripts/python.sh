# For scripts that need Python: sourced, not run. `pythons` prints an interpreter for each version that is
# here, 3.11 and later, the oldest first, without free-threaded builds.
pythons() {
    local python version seen=" "
    for python in ${PYTHON:-} python3 python3.11 python3.12 python3.13 python3.14 \
        "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.*/bin/python3; do
        command -v "$python" >/dev/null || continue
        version=$("$python" -c 'import ensurepip, sys, sysconfig, venv
if sys.version_info >= (3, 11) and not sysconfig.get_config_var("Py_GIL_DISABLED"):
    print("3.%d" % sys.version_info[1])' 2>/dev/null) || continue
        [ -n "$version" ] || continue
        case $seen in *" $version "*) continue ;; esac
        seen+="$version "
        echo "$version $(command -v "$python")"
    done | sort -t. -k2 -n | cut -d' ' -f2-
}
