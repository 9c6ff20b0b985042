/* A server that ends: calls fail in time, with the right errno. Prints "ready", and waits for a line. */
#include "check.h"

/* What a server that is gone was asked for stays in flight while it is looked for. */
static void in_flight(dap_session_t patient, dap_file_t file)
{
    static char bytes[4096];
    void *address;
    dap_mem_t mem, own;
    dap_cg_t group;
    IS(dap_mem_alloc(patient, 4096, &address, &mem), 0);
    IS(dap_register_mem(patient, bytes, sizeof bytes, &own), 0);
    IS(dap_cg_create(patient, 200, &group), 0);
    NEW(dap_op_t, op);
    NEW(dap_result_t, result);
    op.op = DAP_OP_READ;
    op.file = file;
    op.length = 4096;
    for (int i = 0; i < 200; i++) {
        op.mem = i % 2 ? own : mem;
        IS(dap_submit(group, &op, 1, 0), 1);
    }
    /* There is no credit for so many. */
    IS(dap_cancel(group, op.request), 0);
    IS(dap_wait(group, op.request, -1, &result), 1);
    IS(result.value, -ECANCELED);
    IS(dap_cancel(group, op.request), -ENOENT);
    IS(dap_mem_free(mem), -EBUSY);
    SAYS("in flight");
    IS(dap_deregister_mem(own), -EBUSY);
    IS(dap_cg_destroy(group), -EBUSY);
    IS(dap_session_close(patient), 0);
    IS(dap_mem_free(mem), 0);
    IS(dap_deregister_mem(own), 0);
}

int main(int argc, char **argv)
{
    TRUE(argc == 2);
    dap_session_t session;
    dap_file_t file;
    dap_mem_t mem;
    void *address;
    char text[16] = "";
    NEW(dap_options_t, options);
    options.retry_ms = 300;
    IS(dap_session_open(argv[1], &options, &session), 0);
    IS(dap_open(session, "dead", DAP_OPEN_READ | DAP_OPEN_WRITE | DAP_OPEN_CREATE, 0600, &file), 0);
    dap_session_t patient;
    dap_file_t looked_for;
    options.retry_ms = 3600000;
    IS(dap_session_open(argv[1], &options, &patient), 0);
    IS(dap_open(patient, "dead", DAP_OPEN_READ, 0, &looked_for), 0);
    IS(dap_mem_alloc(session, 4096, &address, &mem), 0);
    IS(dap_pwrite(file, "kept", 4, 0, 0), 4);
    IS(dap_fsync(file), 0);
    puts("ready");
    fflush(stdout);
    TRUE(fgets(text, sizeof text, stdin));
    in_flight(patient, looked_for);
    int64_t answer = dap_pread(file, text, 4, 0);
    TRUE(answer == -ENOTCONN || answer == -ECONNREFUSED);
    SAYS("cannot connect");
    NEW(dap_op_t, op);
    NEW(dap_result_t, result);
    dap_cg_t group;
    op.op = DAP_OP_READ;
    op.file = file;
    op.mem = mem;
    op.length = 4;
    IS(dap_cg_default(session, &group), 0);
    IS(dap_submit(0, &op, 1, 0), 1);
    IS(dap_wait(group, op.request, -1, &result), 1);
    TRUE(result.value == -ENOTCONN || result.value == -ECONNREFUSED);
    IS(dap_mem_free(mem), 0);
    TRUE(dap_close(file) < 0);
    IS(dap_close(file), -EBADF);
    IS(dap_session_close(session), 0);
    return done();
}
