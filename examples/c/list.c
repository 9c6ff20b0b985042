/* Lists a directory: list dafs://HOST/ DIRECTORY */
#include <dafs.h>
#include <inttypes.h>
#include <stdio.h>

static int fail(const char *what)
{
    char text[512];
    dap_error_message(text, sizeof text);
    fprintf(stderr, "list: %s: %s\n", what, text);
    return 1;
}

int main(int argc, char **argv)
{
    dap_session_t session;
    dap_dir_t dir;
    dap_dirent_t entry = {.size = sizeof entry};
    int more;

    if (argc != 3) {
        fprintf(stderr, "usage: list URL DIRECTORY\n");
        return 2;
    }
    if (dap_session_open(argv[1], NULL, &session) < 0)
        return fail(argv[1]);
    if (dap_opendir(session, argv[2], &dir) < 0)
        return fail(argv[2]);
    while ((more = dap_readdir(dir, &entry)) > 0)
        printf("%12" PRIu64 "  %s%s\n", entry.bytes, (char *)entry.name,
               entry.kind == DAP_KIND_DIRECTORY ? "/" : "");
    if (more < 0)
        return fail(argv[2]);
    dap_closedir(dir);
    dap_session_close(session);
    return 0;
}
