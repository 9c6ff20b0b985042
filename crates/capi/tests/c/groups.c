/* Asynchronous operations: groups, lists, waits, callbacks, descriptors, cancelling. */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#include "check.h"

#define BLOCK 4096
#define BLOCKS 64

static dap_session_t session;
static dap_file_t file;
static dap_mem_t mem;
static unsigned char *bytes;

static dap_op_t operation(uint32_t op, int block)
{
    NEW(dap_op_t, one);
    one.op = op;
    one.file = file;
    one.mem = mem;
    one.mem_offset = (uint64_t)block * BLOCK;
    one.length = BLOCK;
    one.offset = (uint64_t)block * BLOCK;
    one.user = (uint64_t)block;
    return one;
}

static void batches(void)
{
    dap_cg_t group;
    dap_op_t ops[BLOCKS];
    dap_result_t results[BLOCKS];
    results[0].size = sizeof results[0];
    IS(dap_cg_create(session, BLOCKS, &group), 0);
    for (int i = 0; i < BLOCKS; i++) {
        memset(bytes + i * BLOCK, 'a' + i % 26, BLOCK);
        ops[i] = operation(DAP_OP_WRITE, i);
    }
    IS(dap_submit(group, ops, BLOCKS, 0), BLOCKS);
    int seen[BLOCKS] = {0};
    for (int left = BLOCKS; left > 0;) {
        int64_t count = dap_cg_wait(group, results, BLOCKS, 1, -1);
        TRUE(count > 0);
        for (int64_t i = 0; i < count; i++) {
            IS(results[i].value, BLOCK);
            IS(results[i].op, DAP_OP_WRITE);
            IS(seen[results[i].user]++, 0);
            IS(results[i].request, ops[results[i].user].request);
        }
        left -= (int)count;
    }
    IS(dap_cg_under_way(group), 0);
    IS(dap_cg_wait(group, results, BLOCKS, 1, -1), 0);
    IS(dap_wait(group, ops[0].request, -1, results), -ENOENT);

    memset(bytes, 0, BLOCKS * BLOCK);
    for (int i = 0; i < BLOCKS; i++) {
        ops[i] = operation(DAP_OP_READ, i);
        IS(dap_submit(group, &ops[i], 1, DAP_SUBMIT_MORE), 1);
    }
    /* Wait for n, with a time limit; as many as are under way are enough. */
    IS(dap_cg_wait(group, results, BLOCKS, BLOCKS, 60000), BLOCKS);
    for (int i = 0; i < BLOCKS; i++)
        IS(bytes[i * BLOCK + 7], 'a' + i % 26);

    /* One after the other, in another order than they were submitted. */
    IS(dap_submit(group, ops, 8, 0), 8);
    for (int i = 7; i >= 0; i--) {
        IS(dap_wait(group, ops[i].request, -1, results), 1);
        IS(results[0].user, i);
    }
    IS(dap_submit(group, ops, 1, 0), 1);
    int ended = 0;
    while (!ended) {
        ended = dap_test(group, ops[0].request, results);
        TRUE(ended == 0 || ended == 1);
    }
    IS(results[0].value, BLOCK);
    IS(dap_test(group, ops[0].request, results), -ENOENT);
    IS(dap_cg_destroy(group), 0);
    IS(dap_cg_destroy(group), -EBADF);
    IS(dap_submit(group, ops, 1, 0), -EBADF);
}

static void lists(void)
{
    NEW(dap_result_t, result);
    /* Group 0 is the default one. */
    dap_cg_t group;
    IS(dap_cg_default(session, &group), 0);
    dap_segment_t segments[2] = {
        {.offset = 0, .mem = mem, .mem_offset = 10 * BLOCK, .length = BLOCK},
        {.offset = 5 * BLOCK, .mem = mem, .mem_offset = 12 * BLOCK, .length = 1200000},
    };
    dap_op_t op = operation(DAP_OP_WRITE_LIST, 0);
    op.segments = segments;
    op.segment_count = 2;
    IS(dap_submit(0, &op, 1, 0), 1);
    IS(dap_wait(group, op.request, -1, &result), 1);
    IS(result.value, BLOCK + 1200000);
    dap_op_t flush = operation(DAP_OP_FSYNC, 0);
    IS(dap_submit(0, &flush, 1, 0), 1);
    IS(dap_wait(group, flush.request, -1, &result), 1);
    IS(result.value, 0);
    flush.op = DAP_OP_FDATASYNC;
    IS(dap_submit(0, &flush, 1, 0), 1);
    IS(dap_wait(group, flush.request, -1, &result), 1);
    op.op = DAP_OP_READ_LIST;
    IS(dap_submit(0, &op, 1, 0), 1);
    /* The segments were read. */
    memset(segments, 0xff, sizeof segments);
    IS(dap_wait(group, op.request, -1, &result), 1);
    IS(result.value, BLOCK + 1200000);
    /* Large ones are cut inside, and end once. */
    dap_op_t large = operation(DAP_OP_READ, 0);
    large.length = 3000000;
    IS(dap_submit(0, &large, 1, 0), 1);
    IS(dap_wait(group, large.request, -1, &result), 1);
    IS(result.value, 5 * BLOCK + 1200000);
    /* Of no bytes. */
    large.length = 0;
    IS(dap_submit(0, &large, 1, 0), 1);
    IS(dap_wait(group, large.request, 0, &result), 1);
    IS(result.value, 0);
    /* What fails, fails in its result. */
    dap_file_t reader;
    IS(dap_open(session, "data", DAP_OPEN_READ, 0, &reader), 0);
    dap_op_t bad = operation(DAP_OP_WRITE, 0);
    bad.file = reader;
    IS(dap_submit(0, &bad, 1, 0), 1);
    IS(dap_wait(group, bad.request, -1, &result), 1);
    IS(result.value, -EBADF);
    TRUE(result.reason != 0);
    SAYS("not open for this");
    IS(dap_close(reader), 0);
    IS(dap_cg_destroy(group), -EINVAL);
}

static void full(void)
{
    dap_cg_t group;
    dap_op_t ops[4];
    dap_result_t results[8];
    results[0].size = sizeof results[0];
    IS(dap_cg_create(session, 2, &group), 0);
    for (int i = 0; i < 4; i++)
        ops[i] = operation(DAP_OP_READ, i);
    IS(dap_submit(group, ops, 4, 0), 2);
    IS(dap_submit(group, ops + 2, 2, 0), -EAGAIN);
    SAYS("full");
    IS(dap_cg_destroy(group), -EBUSY);
    int ended = 0, room = 0;
    while (ended < 2) {
        int64_t count = dap_cg_wait(group, results, 8, 1, -1);
        TRUE(count > 0);
        for (int64_t i = 0; i < count; i++) {
            if (results[i].op == DAP_EVENT_ROOM)
                room++;
            else
                ended++;
        }
    }
    IS(room, 1);
    IS(dap_submit(group, ops + 2, 2, 0), 2);
    IS(dap_cg_wait(group, results, 8, 2, -1), 2);
    IS(dap_cg_destroy(group), 0);
}

struct told {
    pthread_mutex_t lock;
    pthread_cond_t more;
    int count;
    int64_t bytes;
    int64_t destroyed;
    dap_cg_t group;
};

static void tell(void *context, const dap_result_t *result)
{
    struct told *told = context;
    pthread_mutex_lock(&told->lock);
    told->count++;
    told->bytes += result->value;
    IS(result->size, sizeof *result);
    told->destroyed = dap_cg_destroy(told->group);
    pthread_cond_signal(&told->more);
    pthread_mutex_unlock(&told->lock);
}

static void callbacks(void)
{
    struct told told = {.lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER};
    dap_op_t ops[8];
    NEW(dap_result_t, result);
    IS(dap_cg_create(session, 8, &told.group), 0);
    IS(dap_cg_callback(told.group, NULL, NULL), -EINVAL);
    IS(dap_cg_callback(told.group, tell, &told), 0);
    IS(dap_cg_callback(told.group, tell, &told), -EBUSY);
    IS(dap_cg_descriptor(told.group), -EBUSY);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 8; i++)
            ops[i] = operation(DAP_OP_READ, i);
        IS(dap_submit(told.group, ops, 8, 0), 8);
        IS(dap_wait(told.group, ops[0].request, -1, &result), -EBUSY);
        pthread_mutex_lock(&told.lock);
        while (told.count < 8 * (round + 1))
            pthread_cond_wait(&told.more, &told.lock);
        pthread_mutex_unlock(&told.lock);
    }
    IS(told.bytes, 16 * BLOCK);
    IS(told.destroyed, -EDEADLK);
    IS(dap_cg_destroy(told.group), 0);
}

static void descriptors(void)
{
    dap_cg_t group;
    dap_op_t ops[8];
    dap_result_t results[8];
    results[0].size = sizeof results[0];
    IS(dap_cg_create(session, 8, &group), 0);
    int descriptor = (int)dap_cg_descriptor(group);
    TRUE(descriptor >= 0);
    IS(dap_cg_descriptor(group), descriptor);
    struct pollfd wanted = {.fd = descriptor, .events = POLLIN};
    IS(poll(&wanted, 1, 0), 0);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 8; i++)
            ops[i] = operation(DAP_OP_READ, i);
        IS(dap_submit(group, ops, 8, 0), 8);
        int ended = 0;
        while (ended < 8) {
            IS(poll(&wanted, 1, 60000), 1);
            int64_t count = dap_cg_wait(group, results, 8, 0, 0);
            TRUE(count >= 0);
            ended += (int)count;
        }
        IS(poll(&wanted, 1, 0), 0);
    }
    IS(dap_cg_destroy(group), 0);
}

static void cancelled(void)
{
    NEW(dap_options_t, options);
    dap_cg_t group;
    static dap_op_t ops[2000];
    static dap_result_t results[2000];
    results[0].size = sizeof results[0];
    IS(dap_cg_create(session, 2000, &group), 0);
    for (int i = 0; i < 2000; i++)
        ops[i] = operation(DAP_OP_READ, i % BLOCKS);
    IS(dap_submit(group, ops, 2000, DAP_SUBMIT_MORE), 2000);
    /* The last one has hardly left: the session has no credit for so many. */
    int result = dap_cancel(group, ops[1999].request);
    TRUE(result == 0 || result == -EALREADY);
    int ended = 0, gone = 0;
    while (ended < 2000) {
        int64_t count = dap_cg_wait(group, results, 2000, 1, -1);
        TRUE(count > 0);
        for (int64_t i = 0; i < count; i++) {
            if (results[i].request == ops[1999].request) {
                IS(results[i].value, result == 0 ? -ECANCELED : BLOCK);
                gone++;
            } else {
                IS(results[i].value, BLOCK);
            }
        }
        ended += (int)count;
    }
    IS(gone, 1);
    IS(dap_cancel(group, ops[0].request), -ENOENT);
    IS(dap_cg_destroy(group), 0);
}

/* A file is closed while more operations on it are under way than the session has room for. */
static void closed(void)
{
    enum { MANY = 6000 };
    static dap_op_t ops[MANY];
    static dap_result_t results[MANY];
    dap_file_t open = file;
    dap_cg_t group;
    results[0].size = sizeof results[0];
    IS(dap_cg_create(session, MANY, &group), 0);
    IS(dap_open(session, "data", DAP_OPEN_READ, 0, &file), 0);
    for (int i = 0; i < MANY; i++)
        ops[i] = operation(DAP_OP_READ, i % BLOCKS);
    IS(dap_submit(group, ops, MANY, DAP_SUBMIT_MORE), MANY);
    IS(dap_close(file), 0);
    IS(dap_submit(group, ops, 1, 0), -EBADF);
    file = open;
    int read = 0;
    for (int ended = 0; ended < MANY;) {
        int64_t count = dap_cg_wait(group, results, MANY, 1, -1);
        TRUE(count > 0);
        for (int64_t i = 0; i < count; i++) {
            TRUE(results[i].value == BLOCK || results[i].value == -EBADF);
            if (results[i].value == BLOCK)
                read++;
        }
        ended += (int)count;
    }
    TRUE(read >= 4096);
    IS(dap_cg_destroy(group), 0);
}

static void *waiter(void *context)
{
    dap_cg_t group = *(dap_cg_t *)context;
    static _Thread_local dap_result_t results[4];
    results[0].size = sizeof results[0];
    intptr_t taken = 0;
    for (int round = 0; round < 200; round++) {
        dap_op_t ops[4];
        for (int i = 0; i < 4; i++)
            ops[i] = operation(DAP_OP_READ, (round + i) % BLOCKS);
        IS(dap_submit(group, ops, 4, 0), 4);
        for (int i = 3; i >= 0; i--) {
            IS(dap_wait(group, ops[i].request, -1, results), 1);
            IS(results[0].value, BLOCK);
            taken++;
        }
    }
    return (void *)taken;
}

static void threads(void)
{
    dap_cg_t group;
    pthread_t all[4];
    IS(dap_cg_create(session, 64, &group), 0);
    for (int i = 0; i < 4; i++)
        IS(pthread_create(&all[i], NULL, waiter, &group), 0);
    for (int i = 0; i < 4; i++) {
        void *taken;
        IS(pthread_join(all[i], &taken), 0);
        IS((intptr_t)taken, 800);
    }
    IS(dap_cg_destroy(group), 0);
}

int main(int argc, char **argv)
{
    TRUE(argc >= 2);
    void *address;
    IS(dap_session_open(argv[1], NULL, &session), 0);
    IS(dap_open(session, "data", DAP_OPEN_READ | DAP_OPEN_WRITE | DAP_OPEN_CREATE, 0600, &file), 0);
    IS(dap_mem_alloc(session, 4 << 20, &address, &mem), 0);
    bytes = address;
    batches();
    lists();
    full();
    callbacks();
    descriptors();
    cancelled();
    closed();
    threads();
    IS(dap_mem_free(mem), 0);
    IS(dap_close(file), 0);
    IS(dap_session_close(session), 0);
    return done();
}
