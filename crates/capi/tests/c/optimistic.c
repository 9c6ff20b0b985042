/* What is read of the server's cache without its program, while others write: nothing older than what had been
 * acknowledged when the read began, nothing torn.
 *
 *   optimistic URL TRANSPORT HITS [early]
 *
 * With `early` the writer says that it is acknowledged before it has written: a judge that sees must find that. */
#include "check.h"

#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>

/* A unit begins in the middle of a page, and lies in three. */
enum { PAGE = 4096, UNITS = 32, UNIT = 2 * PAGE, WORDS = UNIT / 8, FIRST = PAGE / 2, READERS = 2, FOUND = 3 };

/* What all processes map. */
struct history {
    struct {
        /* The newest version of which a write has begun, and that was acknowledged or seen. */
        _Atomic uint64_t begun, seen;
    } units[UNITS];
    _Atomic uint64_t hits, reads;
    _Atomic int is_over;
};

static struct history *history;
/* Seconds after which it hangs: more where more is wanted. */
static unsigned patience;
static dap_session_t session;
static dap_file_t file;

static uint64_t at(int unit)
{
    return FIRST + (uint64_t)unit * UNIT;
}

static uint64_t stamp(int unit, uint64_t version)
{
    return version << 16 | (uint64_t)unit;
}

static void begin(const char *url, const char *transport)
{
    NEW(dap_session_info_t, info);
    alarm(patience);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    IS(dap_session_open(url, NULL, &session), 0);
    IS(dap_session_query(session, &info), 0);
    IS(strcmp((char *)info.transport, transport), 0);
    IS(info.optimistic_hits, 0);
    IS(dap_open(session, "history", DAP_OPEN_READ | DAP_OPEN_WRITE | DAP_OPEN_CREATE, 0644, &file), 0);
}

/* A program that was compiled when nothing was counted has a smaller structure, and gets no more. */
static void asks_as_before(void)
{
    NEW(dap_session_info_t, info);
    info.size = offsetof(dap_session_info_t, optimistic_hits);
    info.optimistic_hits = info.optimistic_stale = 77;
    IS(dap_session_query(session, &info), 0);
    TRUE(info.round_trips > 0);
    IS(info.optimistic_hits, 77);
    IS(info.optimistic_stale, 77);
    info.size--;
    IS(dap_session_query(session, &info), -EINVAL);
}

static void saw(int unit, uint64_t version)
{
    uint64_t seen = history->units[unit].seen;
    while (seen < version && !atomic_compare_exchange_weak(&history->units[unit].seen, &seen, version))
        ;
}

static void write_one(int unit, int is_early)
{
    static uint64_t words[WORDS];
    uint64_t version = ++history->units[unit].begun;
    for (int i = 0; i < WORDS; i++)
        words[i] = stamp(unit, version);
    if (is_early)
        saw(unit, version);
    IS(dap_pwrite(file, words, UNIT, at(unit), 0), UNIT);
    saw(unit, version);
}

static void read_one(int unit)
{
    static uint64_t words[WORDS];
    uint64_t least = history->units[unit].seen;
    memset(words, 0xee, sizeof words);
    IS(dap_pread(file, words, UNIT, at(unit)), UNIT);
    uint64_t most = history->units[unit].begun, version = words[0] >> 16;
    for (int i = 0; i < WORDS; i++) {
        if (words[i] != stamp(unit, version)) {
            fprintf(stderr, "unit %d is torn, or another\n", unit);
            _exit(FOUND);
        }
    }
    if (version < least || version > most) {
        fprintf(stderr, "unit %d: read %llu of %llu to %llu\n", unit, (unsigned long long)version,
                (unsigned long long)least, (unsigned long long)most);
        _exit(FOUND);
    }
    saw(unit, version);
    history->reads++;
}

static void reader(unsigned seed)
{
    NEW(dap_session_info_t, info);
    uint64_t had = 0;
    while (!history->is_over) {
        for (int i = 0; i < 16; i++)
            read_one(rand_r(&seed) % UNITS);
        IS(dap_session_query(session, &info), 0);
        history->hits += info.optimistic_hits - had;
        had = info.optimistic_hits;
    }
    IS(dap_session_close(session), 0);
    _exit(0);
}

int main(int count, char **arguments)
{
    TRUE(count >= 4);
    uint64_t wanted = strtoull(arguments[3], NULL, 10);
    patience = 120 + (unsigned)(wanted / 200 > 3600 ? 3600 : wanted / 200);
    int is_early = count > 4, status = 0;
    unsigned seed = 1;
    pid_t readers[READERS];
    history = mmap(NULL, sizeof *history, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    TRUE(history != MAP_FAILED);
    /* Everybody has a session of his own, which does not live through fork; all units are there before they read. */
    int ready[2];
    IS(pipe(ready), 0);
    for (int i = 0; i < READERS; i++) {
        if ((readers[i] = fork()) == 0) {
            char byte;
            close(ready[1]);
            IS(read(ready[0], &byte, 1), 0);
            begin(arguments[1], arguments[2]);
            reader(100 + (unsigned)i);
        }
        TRUE(readers[i] > 0);
    }
    begin(arguments[1], arguments[2]);
    for (int unit = 0; unit < UNITS; unit++)
        write_one(unit, 0);
    asks_as_before();
    close(ready[1]);
    /* Until they have read enough, or one has found something. */
    pid_t ended = 0;
    while (history->hits < wanted && (ended = waitpid(-1, &status, WNOHANG)) == 0)
        write_one(rand_r(&seed) % UNITS, is_early);
    history->is_over = 1;
    if (ended != 0)
        return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    for (int i = 0; i < READERS; i++)
        TRUE(child_is_good(readers[i]));
    IS(dap_session_close(session), 0);
    printf("%llu reads, %llu hits\n", (unsigned long long)history->reads, (unsigned long long)history->hits);
    return done();
}
