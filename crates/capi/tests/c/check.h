/* What the programs of the tests have in common. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <dafs.h>

static long checks;

/* Ends the program where two numbers differ. */
#define IS(found, wanted)                                                                          \
    do {                                                                                           \
        long long found_ = (long long)(found), wanted_ = (long long)(wanted);                      \
        checks++;                                                                                  \
        if (found_ != wanted_) {                                                                   \
            char text_[512] = "";                                                                  \
            dap_error_message(text_, sizeof text_);                                                \
            fprintf(stderr, "%s:%d: %s is %lld, not %lld (%s)\n", __FILE__, __LINE__, #found,      \
                    found_, wanted_, text_);                                                       \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define TRUE(what) IS(!!(what), 1)

/* That the words for the last error have these in them. */
#define SAYS(words)                                                                                \
    do {                                                                                           \
        char said_[512] = "";                                                                      \
        dap_error_message(said_, sizeof said_);                                                    \
        checks++;                                                                                  \
        if (strstr(said_, words) == NULL) {                                                        \
            fprintf(stderr, "%s:%d: '%s' does not say '%s'\n", __FILE__, __LINE__, said_, words);  \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define NEW(type, name)                                                                            \
    type name;                                                                                     \
    memset(&name, 0, sizeof name);                                                                 \
    name.size = sizeof name

/* Waits for a child; whether it found nothing. */
static inline int child_is_good(pid_t child)
{
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child)
        return 0;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static inline int done(void)
{
    printf("%ld checks\n", checks);
    return 0;
}

#endif
