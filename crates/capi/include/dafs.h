/* libdafs: a DAFS-style interface to DAFS servers. Manual: libdafs(3).
   Made from crates/capi/src by its test `made`: do not edit. */

#ifndef DAFS_H
#define DAFS_H

#include <stddef.h>
#include <stdint.h>

/* The version of this interface: 0x000100 is 0.1.0. */
#define DAP_VERSION 256

/* Flag of dap_open: reading is wanted. */
#define DAP_OPEN_READ 1

/* Flag of dap_open: writing is wanted. */
#define DAP_OPEN_WRITE 2

/* Flag of dap_open: the file is made where it is missing. */
#define DAP_OPEN_CREATE 4

/* Flag of dap_open: with DAP_OPEN_CREATE, a file that exists is -EEXIST. */
#define DAP_OPEN_EXCLUSIVE 8

/* Flag of dap_open: the file is emptied. */
#define DAP_OPEN_TRUNCATE 16

/* Flag of dap_open: every write goes to the end. */
#define DAP_OPEN_APPEND 32

/* Flag of dap_open: a symbolic link is -ELOOP. */
#define DAP_OPEN_NOFOLLOW 64

/* Flag of calls on names: of a symbolic link itself. */
#define DAP_NOFOLLOW 1

/* Flag of dap_rename: a name that exists is -EEXIST. */
#define DAP_RENAME_NOREPLACE 1

/* Flag of dap_rename: the two names are swapped. */
#define DAP_RENAME_EXCHANGE 2

/* Flag of dap_setxattr: one that exists is -EEXIST. */
#define DAP_XATTR_CREATE 1

/* Flag of dap_setxattr: one that is missing is -ENODATA. */
#define DAP_XATTR_REPLACE 2

/* Flag of writes: data is on disk, with the size, before the call answers. */
#define DAP_WRITE_DATA 1

/* Flag of writes: data and all attributes are on disk before the call answers. */
#define DAP_WRITE_STABLE 2

/* How dap_session_open waits for replies: spinning for a while that adapts, then asleep. */
#define DAP_WAIT_ADAPTIVE 0

/* How dap_session_open waits: never asleep. */
#define DAP_WAIT_POLLED 1

/* How dap_session_open waits: asleep at once. */
#define DAP_WAIT_SLEEPING 2

/* Flag of options: the server does not read ahead, nor does the library. */
#define DAP_SESSION_NO_READ_AHEAD 1

/* Transfer mode: data beside the request or the reply. */
#define DAP_TRANSFER_INLINE 1

/* Transfer mode: data goes to its place by the tag of a reply. */
#define DAP_TRANSFER_TAGGED 2

/* Transfer mode: the server fetches data by RDMA read. */
#define DAP_TRANSFER_RDMA_READ 4

/* Kind of object: a regular file. */
#define DAP_KIND_FILE 1

/* Kind of object: a directory. */
#define DAP_KIND_DIRECTORY 2

/* Kind of object: a symbolic link. */
#define DAP_KIND_SYMLINK 3

/* Kind of object: a named pipe. */
#define DAP_KIND_FIFO 4

/* Kind of object: a socket. */
#define DAP_KIND_SOCKET 5

/* Kind of object: a character device. */
#define DAP_KIND_CHAR_DEVICE 6

/* Kind of object: a block device. */
#define DAP_KIND_BLOCK_DEVICE 7

/* Field of dap_setattr_t: size. */
#define DAP_SET_SIZE 1

/* Field of dap_setattr_t: mode. */
#define DAP_SET_MODE 2

/* Field of dap_setattr_t: uid. */
#define DAP_SET_UID 4

/* Field of dap_setattr_t: gid. */
#define DAP_SET_GID 8

/* Field of dap_setattr_t: accessed. */
#define DAP_SET_ACCESSED 16

/* Field of dap_setattr_t: modified. */
#define DAP_SET_MODIFIED 32

/* Field of dap_setattr_t: the time of access is the server's now. */
#define DAP_SET_ACCESSED_NOW 64

/* Field of dap_setattr_t: the time of modification is the server's now. */
#define DAP_SET_MODIFIED_NOW 128

/* Kind of lock: as fcntl(2) F_SETLK; of a process, deadlocks are found. */
#define DAP_LOCK_POSIX 1

/* Kind of lock: as fcntl(2) F_OFD_SETLK; of an open file. */
#define DAP_LOCK_OFD 2

/* Kind of lock: as flock(2); of an open file, the whole of it. */
#define DAP_LOCK_WHOLE 3

/* Flag of dap_lock_t: shared with nobody. */
#define DAP_LOCK_EXCLUSIVE 1

/* Flag of dap_lock_t: dap_lock waits for it. */
#define DAP_LOCK_WAIT 2

/* Advice: streams of reads, which the server may read ahead of. */
#define DAP_ADVISE_SEQUENTIAL 1

/* Advice: no streams of reads. */
#define DAP_ADVISE_RANDOM 2

/* Advice: the range will be read soon. */
#define DAP_ADVISE_WILLNEED 3

/* Advice: the range will not be read soon. */
#define DAP_ADVISE_DONTNEED 4

/* Operation of dap_op_t: reads into registered memory. */
#define DAP_OP_READ 1

/* Operation of dap_op_t: writes from registered memory. */
#define DAP_OP_WRITE 2

/* Operation of dap_op_t: reads the segments of a list. */
#define DAP_OP_READ_LIST 3

/* Operation of dap_op_t: writes the segments of a list. */
#define DAP_OP_WRITE_LIST 4

/* Operation of dap_op_t: as dap_fsync. */
#define DAP_OP_FSYNC 5

/* Operation of dap_op_t: as dap_fdatasync. */
#define DAP_OP_FDATASYNC 6

/* In dap_result_t: no operation ended, but the group that was full has room again. */
#define DAP_EVENT_ROOM 256

/* Flag of dap_submit: more follows at once; nothing need leave yet. */
#define DAP_SUBMIT_MORE 1

/* Segments of a list at most. */
#define DAP_SEGMENTS_MAX 1024

/* Operations of a group that have not ended, at most. */
#define DAP_CG_DEPTH_MAX 65536

/* Bytes of one read or write at most; longer ones are cut, as read(2) does. */
#define DAP_IO_BYTES_MAX 2147479552

/* Names of one dap_exists at most. */
#define DAP_NAMES_MAX 65536

/* Reason of an error: unstable writes were lost with the server; errno EIO. */
#define DAP_REASON_WRITES_LOST 15104

/* Reason of an error: nobody knows whether the call was done; errno EIO. */
#define DAP_REASON_OUTCOME_UNKNOWN 15103

/* Reason of an error: locks were lost, since the server had given the client up; errno EIO. */
#define DAP_REASON_LOCKS_LOST 15108

/* How a session behaves. Zero in a field is the usual value. */
typedef struct dap_options_t {
  /* sizeof(dap_options_t). */
  uint32_t size;
  /* DAP_SESSION_... */
  uint32_t flags;
  /* For how many milliseconds a lost server is looked for before calls fail; 0: 60,000. */
  uint32_t retry_ms;
  /* Requests under way, 1 to 1024; 0: 64. */
  uint32_t credits;
  /* Bytes of data in one request, 4096 to 1 MiB; 0: 1 MiB. */
  uint32_t data_bytes_max;
  /* Connections, 1 or 2; 0: 2. */
  uint32_t connections;
  /* DAP_WAIT_... */
  uint32_t wait;
  /* Bytes of the key. */
  uint32_t key_bytes;
  /* The key that the server has, too; null: none. Copied. */
  const void *key;
  /* The export by its name; null: the only one, or a root that has all as directories. */
  const char *export_name;
} dap_options_t;

/* An open session. */
typedef uint64_t dap_session_t;

/* What a session is like, and what it did so far. */
typedef struct dap_session_info_t {
  /* sizeof(dap_session_info_t), set by the caller. */
  uint32_t size;
  /* Of the protocol that both ends speak. */
  uint32_t protocol_version;
  /* DAP_TRANSFER_... that are used. */
  uint32_t transfer_modes;
  /* Requests that may be under way. */
  uint32_t credits;
  /* Bytes of data of one request, each way. */
  uint32_t data_bytes_max;
  /* Data up to this goes beside the header of its message. */
  uint32_t inline_bytes_max;
  /* Milliseconds of silence after which the server forgets the session. */
  uint32_t lease_ms;
  /* The user for whom the session acts on the server. */
  uint32_t uid;
  /* The server's cache for data, in bytes. */
  uint64_t server_cache_bytes;
  /* Of it, bytes that are not on disk yet. */
  uint64_t server_dirty_bytes;
  /* Reads of the server that its cache answered. */
  uint64_t server_cache_hits;
  /* Reads of the server that the disk answered. */
  uint64_t server_cache_misses;
  /* Memory that this process has registered so far, how often. */
  uint64_t registrations;
  /* Bytes of data that this process copied in user space so far. */
  uint64_t copied_bytes;
  /* Requests sent so far. */
  uint64_t round_trips;
  /* Connections made again after a break. */
  uint64_t reconnects;
  /* Sessions made again after the server forgot one. */
  uint64_t new_sessions;
  /* Changes when the server restarts. */
  uint8_t verifier[16];
  /* "tcp", "unix" or "shm", ended by NUL. */
  uint8_t transport[16];
  /* Reads so far that took what the server has cached, and asked no program of the server's. */
  uint64_t optimistic_hits;
  /* Of those that tried, what was not any more where it had been, or changed meanwhile; read again from the server. */
  uint64_t optimistic_stale;
} dap_session_info_t;

/* An open file. */
typedef uint64_t dap_file_t;

/* Seconds since 1970, and nanoseconds. */
typedef struct dap_time_t {
  /* Seconds since 1970. */
  int64_t seconds;
  /* 0 to 999,999,999. */
  uint32_t nanoseconds;
  /* 0. */
  uint32_t reserved;
} dap_time_t;

/* Attributes of an object. */
typedef struct dap_stat_t {
  /* sizeof(dap_stat_t), set by the caller. */
  uint32_t size;
  /* DAP_KIND_... */
  uint32_t kind;
  /* Permission bits, with setuid, setgid and sticky. */
  uint32_t mode;
  /* Hard links. */
  uint32_t links;
  /* Owner. */
  uint32_t uid;
  /* Group. */
  uint32_t gid;
  /* Size in bytes. */
  uint64_t bytes;
  /* Bytes that are allocated. */
  uint64_t allocated_bytes;
  /* Unique with device. */
  uint64_t inode;
  /* The file system, as a number that stays. */
  uint64_t device;
  /* Of a device node. */
  uint64_t rdev;
  /* Grows with each change. */
  uint64_t change;
  /* Preferred size of reads and writes. */
  uint32_t block_bytes;
  /* 0. */
  uint32_t reserved;
  /* Last access. */
  dap_time_t accessed;
  /* Last change of data. */
  dap_time_t modified;
  /* Last change of attributes. */
  dap_time_t changed;
  /* When it was made; 0 where that is not known. */
  dap_time_t created;
} dap_stat_t;

/* Attributes to change. */
typedef struct dap_setattr_t {
  /* sizeof(dap_setattr_t). */
  uint32_t size;
  /* DAP_SET_...: the fields that count. */
  uint32_t set;
  /* Size in bytes. */
  uint64_t bytes;
  /* Permission bits. */
  uint32_t mode;
  /* Owner. */
  uint32_t uid;
  /* Group. */
  uint32_t gid;
  /* 0. */
  uint32_t reserved;
  /* Last access. */
  dap_time_t accessed;
  /* Last change of data. */
  dap_time_t modified;
} dap_setattr_t;

/* Registered memory. */
typedef uint64_t dap_mem_t;

/* A part of a list: bytes of a file, and where they are in registered memory. Never grows. */
typedef struct dap_segment_t {
  /* First byte in the file. */
  uint64_t offset;
  /* Registered memory. */
  dap_mem_t mem;
  /* First byte in it. */
  uint64_t mem_offset;
  /* Bytes. */
  uint64_t length;
} dap_segment_t;

/* Space and limits of a file system. */
typedef struct dap_statfs_t {
  /* sizeof(dap_statfs_t), set by the caller. */
  uint32_t size;
  /* Block size in bytes. */
  uint32_t block_bytes;
  /* Bytes in all. */
  uint64_t bytes_total;
  /* Bytes free. */
  uint64_t bytes_free;
  /* Bytes free to users other than root. */
  uint64_t bytes_available;
  /* Files in all. */
  uint64_t files_total;
  /* Files free. */
  uint64_t files_free;
  /* The longest name, in bytes. */
  uint32_t name_bytes_max;
  /* 1: the export takes no changes. */
  uint32_t read_only;
} dap_statfs_t;

/* An open directory. */
typedef uint64_t dap_dir_t;

/* An entry of a directory. */
typedef struct dap_dirent_t {
  /* sizeof(dap_dirent_t), set by the caller. */
  uint32_t size;
  /* DAP_KIND_...; 0: not known. */
  uint32_t kind;
  /* Of the object; 0: not known. */
  uint64_t inode;
  /* Of the object; 0: not known. */
  uint64_t bytes;
  /* Of the name, without NUL. */
  uint32_t name_bytes;
  /* Permission bits. */
  uint32_t mode;
  /* The name, ended by NUL: any bytes but '/' and NUL. */
  uint8_t name[256];
} dap_dirent_t;

/* A lock that is wanted, given back or asked for. */
typedef struct dap_lock_t {
  /* sizeof(dap_lock_t). */
  uint32_t size;
  /* DAP_LOCK_POSIX, DAP_LOCK_OFD or DAP_LOCK_WHOLE. */
  uint32_t kind;
  /* DAP_LOCK_EXCLUSIVE, DAP_LOCK_WAIT. */
  uint32_t flags;
  /* The process that is told to who asks for the holder. */
  uint32_t pid;
  /* Who holds it, among the owners of the session: a number that the program chooses. */
  uint64_t owner;
  /* First byte. */
  uint64_t offset;
  /* Bytes; 0: to the end, however the file grows. */
  uint64_t length;
} dap_lock_t;

/* Data that is read in place. */
typedef uint64_t dap_loan_t;

/* A completion group. */
typedef uint64_t dap_cg_t;

/* How an operation ended. */
typedef struct dap_result_t {
  /* sizeof(dap_result_t), set by the caller. */
  uint32_t size;
  /* DAP_OP_... of the operation, or DAP_EVENT_ROOM. */
  uint32_t op;
  /* Of the operation. */
  uint64_t request;
  /* Of the operation. */
  uint64_t user;
  /* Bytes that were read or written, 0 for other operations, or a negative errno. */
  int64_t value;
  /* DAP_REASON_..., or another status of the server; 0: none. */
  uint32_t reason;
  /* 0. */
  uint32_t reserved;
} dap_result_t;

/* A function of the program that is told of what ended, and what it gets back with it. */
typedef void (*dap_callback_t)(void *context, const dap_result_t *result);

/* An operation for dap_submit. */
typedef struct dap_op_t {
  /* sizeof(dap_op_t). */
  uint32_t size;
  /* DAP_OP_... */
  uint32_t op;
  /* DAP_WRITE_... for writes; otherwise 0. */
  uint32_t flags;
  /* How many segments, for lists. */
  uint32_t segment_count;
  /* The file. */
  dap_file_t file;
  /* Registered memory. */
  dap_mem_t mem;
  /* First byte in it. */
  uint64_t mem_offset;
  /* Bytes. */
  uint64_t length;
  /* First byte in the file. */
  uint64_t offset;
  /* For lists; read before dap_submit returns. */
  const dap_segment_t *segments;
  /* Comes back with the result. */
  uint64_t user;
  /* Set by dap_submit: names the operation until its result was taken. */
  uint64_t request;
} dap_op_t;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/* Words for the last error of this thread: what is wrong, and what to do */
int64_t dap_error_message(char *buffer, size_t size);

/* Which of the errors that have no errno of their own the last one of this thread was */
uint32_t dap_error_reason(void);

/* The version of the library */
uint32_t dap_version(void);

/* Connects to a server and makes a session */
int32_t dap_session_open(const char *url, const dap_options_t *options, dap_session_t *session);

/* Ends a session, and closes all that is open in it */
int32_t dap_session_close(dap_session_t session);

/* What a session is like: transfer modes, credits, sizes of caches, counters */
int32_t dap_session_query(dap_session_t session, dap_session_info_t *info);

/* A round trip that does nothing */
int32_t dap_session_ping(dap_session_t session, uint64_t *nanoseconds);

/* Everything that anybody wrote to the export, on disk */
int32_t dap_session_sync(dap_session_t session);

/* Opens a file */
int32_t dap_open(dap_session_t session,
                 const char *path,
                 uint32_t flags,
                 uint32_t mode,
                 dap_file_t *file);

/* Closes a file */
int32_t dap_close(dap_file_t file);

/* Attributes of an open file */
int32_t dap_fstat(dap_file_t file, dap_stat_t *stat);

/* Changes attributes of an open file */
int32_t dap_fsetattr(dap_file_t file, const dap_setattr_t *set);

/* Truncates or extends an open file */
int32_t dap_ftruncate(dap_file_t file, uint64_t size);

/* Makes all that was written to a file durable */
int32_t dap_fsync(dap_file_t file);

/* As dap_fsync, without attributes that reading does not need */
int32_t dap_fdatasync(dap_file_t file);

/* Hands what was written to the server's file system */
int32_t dap_flush(dap_file_t file);

/* Writes at the end of a file */
int64_t dap_append(dap_file_t file, const void *buffer, size_t length, uint64_t *offset);

/* Tells the server how a range of a file will be used */
int64_t dap_advise(dap_file_t file, uint64_t offset, uint64_t length, uint32_t advice);

/* Allocates space, punches holes, zeroes: as fallocate(2) */
int32_t dap_allocate(dap_file_t file, uint32_t mode, uint64_t offset, uint64_t length);

/* Where data begins */
int64_t dap_seek_data(dap_file_t file, uint64_t offset);

/* Where a hole begins */
int64_t dap_seek_hole(dap_file_t file, uint64_t offset);

/* Copies within the server */
int64_t dap_copy_range(dap_file_t file,
                       uint64_t offset,
                       dap_file_t to,
                       uint64_t to_offset,
                       uint64_t length);

/* Reads into registered memory */
int64_t dap_read(dap_file_t file,
                 dap_mem_t mem,
                 uint64_t mem_offset,
                 size_t length,
                 uint64_t offset);

/* Writes from registered memory */
int64_t dap_write(dap_file_t file,
                  dap_mem_t mem,
                  uint64_t mem_offset,
                  size_t length,
                  uint64_t offset,
                  uint32_t flags);

/* Reads into any memory */
int64_t dap_pread(dap_file_t file, void *buffer, size_t length, uint64_t offset);

/* Writes from any memory */
int64_t dap_pwrite(dap_file_t file,
                   const void *buffer,
                   size_t length,
                   uint64_t offset,
                   uint32_t flags);

/* Reads a list */
int64_t dap_readv(dap_file_t file, const dap_segment_t *segments, uint32_t segment_count);

/* Writes a list */
int64_t dap_writev(dap_file_t file,
                   const dap_segment_t *segments,
                   uint32_t segment_count,
                   uint32_t flags);

/* Opens a file by its path, reads its beginning and closes it, in one round trip */
int64_t dap_read_file(dap_session_t session,
                      const char *path,
                      void *buffer,
                      size_t length,
                      dap_stat_t *stat);

/* Which of many names exist, in one round trip */
int64_t dap_exists(dap_session_t session,
                   const char *const *paths,
                   uint32_t count,
                   int32_t *results);

/* Attributes of a name */
int32_t dap_stat(dap_session_t session, const char *path, uint32_t flags, dap_stat_t *stat);

/* Changes attributes of a name */
int32_t dap_setattr(dap_session_t session,
                    const char *path,
                    uint32_t flags,
                    const dap_setattr_t *set);

/* Truncates or extends a file */
int32_t dap_truncate(dap_session_t session, const char *path, uint64_t size);

/* What the session's user may do */
int64_t dap_access(dap_session_t session, const char *path, uint32_t mask);

/* Renames */
int32_t dap_rename(dap_session_t session, const char *from, const char *to, uint32_t flags);

/* Gives a file another name */
int32_t dap_link(dap_session_t session, const char *from, const char *to);

/* Makes a symbolic link */
int32_t dap_symlink(dap_session_t session, const char *target, const char *path);

/* What a symbolic link says */
int64_t dap_readlink(dap_session_t session, const char *path, void *buffer, size_t size);

/* Removes a name that is not a directory */
int32_t dap_remove(dap_session_t session, const char *path);

/* Makes a directory */
int32_t dap_mkdir(dap_session_t session, const char *path, uint32_t mode);

/* Removes an empty directory */
int32_t dap_rmdir(dap_session_t session, const char *path);

/* Space and limits of a file system */
int32_t dap_statfs(dap_session_t session, const char *path, dap_statfs_t *statfs);

/* The value of an extended attribute */
int64_t dap_getxattr(dap_session_t session,
                     const char *path,
                     const char *name,
                     void *buffer,
                     size_t size);

/* Sets an extended attribute */
int32_t dap_setxattr(dap_session_t session,
                     const char *path,
                     const char *name,
                     const void *value,
                     size_t size,
                     uint32_t flags);

/* The names of the extended attributes */
int64_t dap_listxattr(dap_session_t session, const char *path, void *buffer, size_t size);

/* Removes an extended attribute */
int32_t dap_removexattr(dap_session_t session, const char *path, const char *name);

/* Opens a directory to read its entries */
int32_t dap_opendir(dap_session_t session, const char *path, dap_dir_t *dir);

/* The next entry of a directory */
int32_t dap_readdir(dap_dir_t dir, dap_dirent_t *entry);

/* Closes a directory */
int32_t dap_closedir(dap_dir_t dir);

/* Locks a range of a file */
int32_t dap_lock(dap_file_t file, const dap_lock_t *lock);

/* Gives a range back */
int32_t dap_unlock(dap_file_t file, const dap_lock_t *lock);

/* Which lock stands against one */
int32_t dap_test_lock(dap_file_t file, dap_lock_t *lock);

/* Registers memory of the program, for reads and writes */
int32_t dap_register_mem(dap_session_t session, void *address, size_t length, dap_mem_t *mem);

/* Gives registered memory back to the program */
int32_t dap_deregister_mem(dap_mem_t mem);

/* Makes memory that is registered */
int32_t dap_mem_alloc(dap_session_t session, size_t length, void **address, dap_mem_t *mem);

/* Frees memory of dap_mem_alloc */
int32_t dap_mem_free(dap_mem_t mem);

/* Reads data where the server has it */
int64_t dap_lend(dap_file_t file, uint64_t offset, size_t length, dap_loan_t *loan);

/* Tells where bytes of a loan are */
int64_t dap_loan_piece(dap_loan_t loan, uint64_t offset, const void **address);

/* Tells whether a loan is in the server's cache */
int32_t dap_loan_is_mapped(dap_loan_t loan);

/* Returns a loan */
int32_t dap_return(dap_loan_t loan);

/* Makes a completion group */
int32_t dap_cg_create(dap_session_t session, uint32_t depth, dap_cg_t *group);

/* The default completion group of a session */
int32_t dap_cg_default(dap_session_t session, dap_cg_t *group);

/* Destroys a completion group */
int32_t dap_cg_destroy(dap_cg_t group);

/* A descriptor that tells of results, for an event loop */
int64_t dap_cg_descriptor(dap_cg_t group);

/* Has results given to a function */
int32_t dap_cg_callback(dap_cg_t group, dap_callback_t function, void *context);

/* Begins operations */
int64_t dap_submit(dap_cg_t group, dap_op_t *operations, uint32_t count, uint32_t flags);

/* How one operation ended, if it did */
int32_t dap_test(dap_cg_t group, uint64_t request, dap_result_t *result);

/* Waits for one operation */
int32_t dap_wait(dap_cg_t group, uint64_t request, int32_t timeout_ms, dap_result_t *result);

/* Waits for several operations of a group */
int64_t dap_cg_wait(dap_cg_t group,
                    dap_result_t *results,
                    uint32_t max,
                    uint32_t min,
                    int32_t timeout_ms);

/* How many operations of a group are under way */
int64_t dap_cg_under_way(dap_cg_t group);

/* Gives up an operation */
int32_t dap_cancel(dap_cg_t group, uint64_t request);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* DAFS_H */
