/*
 * load - a load client for model-API proxies.  Single thread, epoll, loopback only.
 *
 *   load --url http://127.0.0.1:PORT[/prefix] [options]        prints one JSON object
 *
 *   --mode unary|stream|growing   (unary)
 *   --api messages|chat|responses (messages)
 *   --path PATH         request path after the base URL; default by --api
 *   --model NAME        model in the body (bench-model)
 *   --conns N           concurrent keep-alive connections (1)
 *   --requests N        stop after N requests in all (0 = by time)
 *   --duration S        stop starting new requests after S seconds (5)
 *   --warmup S          discard what ends in the first S seconds (0)
 *   --ramp-ms MS        spread the start of the connections over MS (0)
 *   --max-s S           hard end of the run (120)
 *   --size-kb K         agent-like history of about K kB (0 = one short message)
 *   --msg-bytes B       bytes of text in one message of the history (2000)
 *   --grow-bytes B      growing: bytes added for each step (40000)
 *   --steps N           growing: steps of one loop (100)
 *   --loops N           growing: loops one after another on each connection (1)
 *   --stream 0|1        growing: ask for streams (0)
 *   --shape S           growing: how one body differs from the one before it (tools)
 *                         append: tools stand before the messages, only new messages are added at the end
 *                         tools:  tools follow the messages, so new messages go into the middle
 *                         marks:  as tools, and a cache mark sits on the last block of the last message and
 *                                 moves on with each step, so the old last message changes too (messages only)
 *   --distinct 1        growing: each loop opens with words of its own, so that each is a session of its own
 *   --chunks N --delay-us U --chunk-bytes B --ttft-ms MS --batch N
 *                       sent as x-bench-* headers (only those given)
 *   --expect-chunks N   a stream with another number of time stamps is an error
 *   --header 'k: v'     extra request header, repeatable
 *   --close 1           a new connection for each request
 *   --think-ms MS       wait between a reply and the next request of a connection (0)
 *
 * Per-chunk delay is now - time stamp in the chunk, taken right after the read that
 * brought it; the stamp is written by `upstream` on the same machine.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { M_UNARY, M_STREAM, M_GROWING };
enum { A_MESSAGES, A_CHAT, A_RESPONSES };
enum { S_APPEND, S_TOOLS, S_MARKS };
enum { C_OFF, C_CONNECT, C_SEND, C_HEAD, C_BODY, C_DONE, C_THINK };
#define RBUF (256 * 1024)
#define HEADCAP (32 * 1024)
#define TS_DIGITS 19

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + t.tv_nsec;
}

/* ---- log-linear histogram, < 1 % error ------------------------------------------------ */
#define SUB 128
typedef struct { uint64_t n, max; double sum; uint64_t b[64 * SUB]; } hist;
static void hadd(hist *h, uint64_t v) {
    int e = v < SUB ? 0 : 63 - __builtin_clzll(v) - 6;
    uint64_t i = (uint64_t)e * SUB + (e ? (v >> e) : v);
    if (i >= 64 * SUB) i = 64 * SUB - 1;
    h->b[i]++;
    h->n++;
    h->sum += v;
    if (v > h->max) h->max = v;
}
static double hq(hist *h, double q) {       /* microseconds */
    if (!h->n) return 0;
    uint64_t want = (uint64_t)ceil(q * h->n), c = 0;
    if (!want) want = 1;
    for (int i = 0; i < 64 * SUB; i++)
        if ((c += h->b[i]) >= want) {
            int e = i / SUB;
            double v = e ? ((double)(i - e * SUB) + 0.5) * (double)(1ull << e) : i;
            return (v > h->max ? h->max : v) / 1e3;
        }
    return h->max / 1e3;
}
static hist lat, ttfb, chunk;

typedef struct conn {
    int fd, state, keep, status, chunked, cstate, used;
    uint32_t mask;
    char *hdr; size_t hdrlen;               /* growing: this step's header */
    struct iovec iov[3];
    size_t off, total;
    char *head; size_t hlen;
    int64_t need;                           /* -1 = until close */
    int tlen;
    uint64_t t0, tfirst, body;
    int ts_state; uint64_t ts; long seen;   /* time stamp scanner */
    char tail[32]; int taillen;             /* last body bytes, to see the end marker */
    long step, loop, id;
    uint64_t wake;
} conn;

static int ep, mode, api, nconns = 1, one_shot, thinking, shape = S_TOOLS, distinct, growing_streams;
static long think_ms;
static long max_requests, expect_chunks = -1, grow_bytes = 40000, steps = 100, loops = 1;
static double duration = 5, warmup, max_s = 120;
static struct sockaddr_in addr;
static char *xhdr, path[512], hostport[64];
static const char *model = "bench-model";
static char *marked_tail; static char *session_at;  /* where the head names the session, with --distinct */
static char *histb; static size_t histlen; static char *body_head, *body_tail;
static char *req; static size_t reqlen;
static size_t *step_off;
static uint64_t t_begin, t_measure, t_stop;
static uint64_t started, ok, errs, all_ok, all_chunks, chunks, bytes_in, bytes_out, reconnects, incomplete, bad_status, io_errors;
static int first_bad;
static int alive;
static double *step_ms; static double *step_tt; static long *step_n;
static char rbuf[RBUF];

/* ---- request bodies ------------------------------------------------------------------- */
typedef struct { char *s; size_t n, cap; } str;
static void put(str *b, const char *s, size_t n) {
    if (b->n + n + 1 > b->cap) { b->cap = (b->n + n + 1) * 2; b->s = realloc(b->s, b->cap); }
    memcpy(b->s + b->n, s, n);
    b->n += n;
    b->s[b->n] = 0;
}
static void puts_(str *b, const char *s) { put(b, s, strlen(s)); }
static const char *WORDS[] = {"def ", "return ", "the ", "file ", "test ", "import ", "self.", "value ", "error ", "line ",
    "if ", "else:", "for ", "in ", "range(", ") ", "= ", "None\\n", "    ", "assert ", "path ", "open(", "\\\"name\\\"",
    "r\\u00e9sum\\u00e9 ", "0x1f ", "caf\xc3\xa9 ", "\\t", "| ", "// ", "async ", "await ", "\\\\n", "class ", "1234567 "};
static uint64_t seed = 88172645463325252ull;
static uint64_t rnd(void) { seed ^= seed << 13; seed ^= seed >> 7; seed ^= seed << 17; return seed; }
static void text(str *b, size_t n) {        /* JSON string content of about n bytes */
    size_t end = b->n + n;
    while (b->n < end) puts_(b, WORDS[rnd() % (sizeof WORDS / sizeof *WORDS)]);
}
/* one turn: assistant text + tool call, tool result */
static void turn(str *b, size_t n, long i) {
    char t[400];
    size_t small = n / 8, big = n - small > 600 ? n - small - 600 : 50;
    if (api == A_MESSAGES) {
        puts_(b, ",{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"");
        text(b, small);
        snprintf(t, sizeof t, "\"},{\"type\":\"tool_use\",\"id\":\"toolu_%08ld\",\"name\":\"read_file\",\"input\":{\"path\":"
                 "\"src/mod_%ld.py\",\"offset\":%ld,\"limit\":200}}]},{\"role\":\"user\",\"content\":[{\"type\":"
                 "\"tool_result\",\"tool_use_id\":\"toolu_%08ld\",\"content\":\"", i, i % 37, i * 10, i);
        puts_(b, t);
        text(b, big);
        puts_(b, "\"}]}");
    } else if (api == A_CHAT) {
        puts_(b, ",{\"role\":\"assistant\",\"content\":\"");
        text(b, small);
        snprintf(t, sizeof t, "\",\"tool_calls\":[{\"id\":\"call_%08ld\",\"type\":\"function\",\"function\":{\"name\":"
                 "\"read_file\",\"arguments\":\"{\\\"path\\\":\\\"src/mod_%ld.py\\\",\\\"offset\\\":%ld}\"}}]},{\"role\":"
                 "\"tool\",\"tool_call_id\":\"call_%08ld\",\"content\":\"", i, i % 37, i * 10, i);
        puts_(b, t);
        text(b, big);
        puts_(b, "\"}");
    } else {
        puts_(b, ",{\"type\":\"message\",\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":\"");
        text(b, small);
        snprintf(t, sizeof t, "\",\"annotations\":[]}]},{\"type\":\"function_call\",\"call_id\":\"call_%08ld\",\"name\":"
                 "\"read_file\",\"arguments\":\"{\\\"path\\\":\\\"src/mod_%ld.py\\\"}\"},{\"type\":\"function_call_output\","
                 "\"call_id\":\"call_%08ld\",\"output\":\"", i, i % 37, i);
        puts_(b, t);
        text(b, big);
        puts_(b, "\"}");
    }
}
#define MARK ",\"cache_control\":{\"type\":\"ephemeral\"}"
#define BLOCK_END "}]}"                     /* closes the last block, its list and its message */
#define SESSION_DIGITS 8
#define OPENING " 00000000"                 /* the number of the session */
#define SCHEMA "{\"type\":\"object\",\"properties\":{\"path\":{\"type\":\"string\",\"description\":\"file to read\"}," \
    "\"offset\":{\"type\":\"integer\"},\"limit\":{\"type\":\"integer\"}},\"required\":[\"path\"]}"
static void tools(str *t) {
    puts_(t, "\"tools\":[");
    if (api == A_MESSAGES) puts_(t, "{\"name\":\"read_file\",\"description\":\"Read a file.\",\"input_schema\":" SCHEMA "}]");
    else if (api == A_CHAT) puts_(t, "{\"type\":\"function\",\"function\":{\"name\":\"read_file\",\"description\":\"Read a file.\",\"parameters\":" SCHEMA "}}]");
    else puts_(t, "{\"type\":\"function\",\"name\":\"read_file\",\"description\":\"Read a file.\",\"parameters\":" SCHEMA "}]");
}
static void build(size_t size, size_t msg, int stream) {
    str h = {0}, t = {0}, m = {0};
    char b[256];
    int agent = size > 0 || mode == M_GROWING;
    snprintf(b, sizeof b, "{\"model\":\"%s\",", model);
    puts_(&h, b);
    const char *stream_keys = !stream ? "" : api == A_CHAT ? "\"stream\":true,\"stream_options\":{\"include_usage\":true}" : "\"stream\":true";
    if (shape == S_APPEND) {                /* everything that is not history comes first */
        if (agent) { tools(&h); puts_(&h, ","); }
        if (stream) { puts_(&h, stream_keys); puts_(&h, ","); }
    }
    if (api == A_MESSAGES) {
        puts_(&h, "\"max_tokens\":1024,");
        if (agent) puts_(&h, "\"system\":[{\"type\":\"text\",\"text\":\"You are a coding agent.\",\"cache_control\":{\"type\":\"ephemeral\"}}],");
        puts_(&h, "\"messages\":[{\"role\":\"user\",\"content\":\"Fix the failing test" OPENING " and explain the cause.\"}");
    } else if (api == A_CHAT)
        puts_(&h, "\"messages\":[{\"role\":\"system\",\"content\":\"You are a coding agent.\"},{\"role\":\"user\","
                  "\"content\":\"Fix the failing test" OPENING " and explain the cause.\"}");
    else
        puts_(&h, "\"instructions\":\"You are a coding agent.\",\"input\":[{\"type\":\"message\",\"role\":\"user\","
                  "\"content\":\"Fix the failing test" OPENING " and explain the cause.\"}");
    puts_(&t, "]");
    if (shape != S_APPEND) {
        if (agent) { puts_(&t, ","); tools(&t); }
        if (stream) { puts_(&t, ","); puts_(&t, stream_keys); }
    }
    puts_(&t, "}");
    long i = 0;
    if (mode == M_GROWING) {
        step_off = calloc(steps + 1, sizeof *step_off);
        put(&m, "", 0);
        for (long s = 1; s <= steps; s++) {
            while (m.n < (size_t)s * grow_bytes) turn(&m, msg < (size_t)grow_bytes ? msg : (size_t)grow_bytes, i++);
            step_off[s] = m.n;
        }
    } else
        while (m.n + h.n + t.n < size) turn(&m, msg, i++);
    body_head = h.s;
    body_tail = t.s;
    session_at = strstr(body_head, OPENING) + 1;
    if (shape == S_MARKS) {
        str k = {0};
        puts_(&k, MARK BLOCK_END);
        puts_(&k, body_tail);
        marked_tail = k.s;
    }
    histb = m.s;
    histlen = m.n;
}
static size_t header(char *d, size_t cap, size_t clen) {
    return snprintf(d, cap, "POST %s HTTP/1.1\r\nhost: %s\r\naccept: application/json\r\ncontent-type: application/json\r\n"
        "user-agent: bench-agent/1.0 Python/3.11\r\naccept-encoding: identity\r\nx-stainless-lang: python\r\n"
        "x-stainless-package-version: 1.0.0\r\nx-stainless-os: Linux\r\nx-stainless-arch: x64\r\n"
        "x-stainless-runtime: CPython\r\nx-stainless-retry-count: 0\r\nx-stainless-timeout: 600\r\n"
        "%s%scontent-length: %zu\r\n%s\r\n", path, hostport,
        api == A_MESSAGES ? "anthropic-version: 2023-06-01\r\nx-api-key: sk-bench-0000000000000000\r\n"
                          : "authorization: Bearer sk-bench-0000000000000000\r\n",
        xhdr ? xhdr : "", clen, one_shot ? "connection: close\r\n" : "");
}

/* ---- connections ---------------------------------------------------------------------- */
static void want(conn *c, uint32_t m) {
    if (c->mask == m) return;
    struct epoll_event e = {.events = m, .data.ptr = c};
    epoll_ctl(ep, c->mask ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, c->fd, &e);
    c->mask = m;
}
static void drop(conn *c) {
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
    c->mask = 0;
    c->used = 0;
}
static void begin(conn *c);
static void do_send(conn *c);
static void retire(conn *c) { drop(c); if (c->state != C_DONE) { c->state = C_DONE; alive--; } }

static void fail(conn *c, int kind, uint64_t now) {
    if (now >= t_measure) errs++;
    if (kind == 0) io_errors++;
    else if (kind == 1) incomplete++;
    drop(c);
    if (mode == M_GROWING) { retire(c); return; }   /* a loop that lost a step is over */
    if (errs > 2000 || io_errors > 5000) { retire(c); return; }
    begin(c);
}
static void begin(conn *c) {
    uint64_t n = now_ns();
    if (n >= t_stop || (max_requests && (long)started >= max_requests && mode != M_GROWING)) { retire(c); return; }
    if (mode == M_GROWING) {
        if (c->step == steps) { c->step = 0; if (++c->loop >= loops) { retire(c); return; } }
        c->step++;
        size_t part = step_off[c->step];
        const char *tail = body_tail;
        if (shape == S_MARKS) { part -= strlen(BLOCK_END); tail = marked_tail; }
        if (distinct) {
            char b[32];
            snprintf(b, sizeof b, "%0*ld", SESSION_DIGITS, c->id * loops + c->loop);
            memcpy(session_at, b, SESSION_DIGITS);
        }
        size_t len = strlen(body_head) + part + strlen(tail);
        if (!c->hdr) c->hdr = malloc(16384);
        c->hdrlen = header(c->hdr, 15000, len);
        c->hdrlen += sprintf(c->hdr + c->hdrlen, "%s", body_head);
        c->iov[0] = (struct iovec){c->hdr, c->hdrlen};
        c->iov[1] = (struct iovec){histb, part};
        c->iov[2] = (struct iovec){(char *)tail, strlen(tail)};
    } else {
        c->iov[0] = (struct iovec){req, reqlen};
        c->iov[1] = c->iov[2] = (struct iovec){req, 0};
    }
    started++;
    c->total = c->iov[0].iov_len + c->iov[1].iov_len + c->iov[2].iov_len;
    c->off = c->hlen = c->body = c->tfirst = 0;
    c->ts_state = 0;
    c->seen = 0;
    c->taillen = 0;
    c->t0 = n;
    if (c->fd < 0) {
        c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        int one = 1;
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        c->mask = 0;
        if (connect(c->fd, (void *)&addr, sizeof addr) && errno != EINPROGRESS) { drop(c); io_errors++; errs++; retire(c); return; }
        c->state = C_CONNECT;
        want(c, EPOLLOUT);
        return;
    }
    c->state = C_SEND;
    do_send(c);
}
static void do_send(conn *c) {
    while (c->off < c->total) {
        struct iovec v[3];
        int k = 0;
        size_t skip = c->off;
        for (int i = 0; i < 3; i++) {
            if (skip >= c->iov[i].iov_len) { skip -= c->iov[i].iov_len; continue; }
            v[k].iov_base = (char *)c->iov[i].iov_base + skip;
            v[k++].iov_len = c->iov[i].iov_len - skip;
            skip = 0;
        }
        struct msghdr m = {.msg_iov = v, .msg_iovlen = k};
        ssize_t n = sendmsg(c->fd, &m, MSG_NOSIGNAL);
        if (n < 0) {
            if (errno == EINTR) continue;
            if (errno == EAGAIN) { want(c, EPOLLOUT | EPOLLIN); return; }
            if (c->used && c->off == 0) { reconnects++; started--; drop(c); if (mode == M_GROWING) c->step--; begin(c); return; }
            fail(c, 0, now_ns());
            return;
        }
        c->off += n;
        bytes_out += n;
    }
    c->state = C_HEAD;
    want(c, EPOLLIN);
}

static void stamp(conn *c, uint64_t now) {
    c->seen++;
    all_chunks++;
    if (now >= t_measure && c->ts < now) { hadd(&chunk, now - c->ts); chunks++; }
}
static void scan(conn *c, const char *s, size_t n, uint64_t now) {
    const char *e = s + n;
    while (s < e) {
        if (c->ts_state == 0) {
            s = memchr(s, '@', e - s);
            if (!s) return;
            s++;
            c->ts_state = 1;
        } else if (c->ts_state == 1) {
            c->ts_state = *s == 'T' ? 2 : 0;
            if (c->ts_state) { s++; c->ts = 0; }
        } else {
            if (*s >= '0' && *s <= '9' && c->ts_state < 2 + TS_DIGITS) { c->ts = c->ts * 10 + (*s - '0'); c->ts_state++; s++; }
            else {
                if (*s == '@' && c->ts_state == 2 + TS_DIGITS) { stamp(c, now); s++; }
                c->ts_state = 0;
            }
        }
    }
}
static void body(conn *c, const char *s, size_t n, uint64_t now) {
    if (!n) return;
    if (!c->tfirst) c->tfirst = now;
    c->body += n;
    if (mode == M_UNARY) return;
    scan(c, s, n, now);
    size_t k = n < 32 ? n : 32;
    if (k == 32) memcpy(c->tail, s + n - 32, 32);
    else { memmove(c->tail, c->tail + k, 32 - k); memcpy(c->tail + 32 - k, s, k); }
    c->taillen = c->taillen + k > 32 ? 32 : c->taillen + k;
}
static void done(conn *c, uint64_t now) {
    int stream = mode == M_STREAM || growing_streams;
    if (c->status != 200) {
        bad_status++;
        if (!first_bad) first_bad = c->status;
        if (now >= t_measure) errs++;
        if (bad_status > 200) { t_stop = 0; }
        if (mode == M_GROWING) { retire(c); return; }
    } else if (stream && expect_chunks >= 0 && c->seen != expect_chunks) { fail(c, 1, now); return; }
    else {
        all_ok++;
        if (now >= t_measure) {
            ok++;
            hadd(&lat, now - c->t0);
            hadd(&ttfb, c->tfirst - c->t0);
        }
        if (mode == M_GROWING) {
            step_ms[c->step] += (now - c->t0) / 1e6;
            step_tt[c->step] += (c->tfirst - c->t0) / 1e6;
            step_n[c->step]++;
        }
    }
    c->used = 1;
    if (!c->keep || one_shot) { if (!one_shot) reconnects++; drop(c); }
    if (think_ms) {
        c->state = C_THINK;
        c->wake = now + think_ms * 1000000ull;
        thinking++;
    } else
        begin(c);
}

static int parse_head(conn *c) {            /* 0 = more, >0 = header length, -1 bad */
    char *e = memmem(c->head, c->hlen, "\r\n\r\n", 4);
    if (!e) return c->hlen >= HEADCAP ? -1 : 0;
    int hl = e - c->head + 4;
    c->head[hl - 1] = 0;
    if (strncmp(c->head, "HTTP/1.", 7)) return -1;
    c->status = atoi(c->head + 9);
    c->keep = c->head[7] == '1';
    c->chunked = 0;
    c->need = -1;
    c->cstate = 0;
    for (char *l = strstr(c->head, "\r\n"); l && l[2]; l = strstr(l + 2, "\r\n")) {
        if (!strncasecmp(l + 2, "content-length:", 15)) c->need = atoll(l + 17);
        else if (!strncasecmp(l + 2, "transfer-encoding:", 18)) c->chunked = 1;
        else if (!strncasecmp(l + 2, "connection:", 11)) {
            char *v = l + 13;
            while (*v == ' ') v++;
            if (!strncasecmp(v, "close", 5)) c->keep = 0;
        }
    }
    if (c->chunked) c->need = 0;
    return hl;
}
static void on_read(conn *c) {
    ssize_t n = recv(c->fd, rbuf, RBUF, 0);
    uint64_t now = now_ns();
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
        if (n == 0 && c->state == C_BODY && c->need == -1) { c->keep = 0; done(c, now); return; }
        if (c->used && c->state == C_HEAD && c->hlen == 0) {    /* idle keep-alive was closed: try again */
            reconnects++; started--; drop(c); if (mode == M_GROWING) c->step--; begin(c); return;
        }
        fail(c, 0, now);
        return;
    }
    bytes_in += n;
    const char *s = rbuf;
    if (c->state == C_SEND) c->state = C_HEAD, c->off = c->total;  /* early reply */
    if (c->state == C_HEAD) {
again:
        if (c->hlen + n > HEADCAP) {
            size_t room = HEADCAP - c->hlen;
            memcpy(c->head + c->hlen, s, room);
            size_t old = c->hlen;
            c->hlen = HEADCAP;
            int hl = parse_head(c);
            if (hl <= 0) { fail(c, 0, now); return; }
            s += hl - old;
            n -= hl - old;
        } else {
            memcpy(c->head + c->hlen, s, n);
            size_t old = c->hlen;
            c->hlen += n;
            int hl = parse_head(c);
            if (hl < 0) { fail(c, 0, now); return; }
            if (!hl) return;
            s += hl - old;
            n -= hl - old;
        }
        if (c->status == 100) { c->hlen = 0; if (n > 0) goto again; return; }
        c->state = C_BODY;
        if (!c->chunked && c->need == 0) { c->tfirst = now; done(c, now); return; }
    }
    if (!c->chunked) {
        if (c->need >= 0 && n > c->need) n = c->need;
        body(c, s, n, now);
        if (c->need > 0 && (c->need -= n) == 0) done(c, now);
        return;
    }
    ssize_t i = 0;
    while (i < n) {
        char ch = s[i];
        switch (c->cstate) {
        case 0:
            if ((ch >= '0' && ch <= '9') || ((ch | 32) >= 'a' && (ch | 32) <= 'f'))
                c->need = c->need * 16 + (ch <= '9' ? ch - '0' : (ch | 32) - 'a' + 10);
            else if (ch == '\n') { c->cstate = c->need ? 2 : 4; c->tlen = 0; }
            else c->cstate = 1;
            i++;
            break;
        case 1:
            if (ch == '\n') { c->cstate = c->need ? 2 : 4; c->tlen = 0; }
            i++;
            break;
        case 2: {
            ssize_t k = n - i < c->need ? n - i : c->need;
            body(c, s + i, k, now);
            i += k;
            c->need -= k;
            if (!c->need) c->cstate = 3;
            break;
        }
        case 3:
            if (ch == '\n') c->cstate = 0;
            i++;
            break;
        default:
            i++;
            if (ch == '\n') {
                if (!c->tlen) { done(c, now); return; }
                c->tlen = 0;
            } else if (ch != '\r') c->tlen++;
        }
    }
}

int main(int argc, char **argv) {
    const char *url = NULL, *pth = NULL;
    long size_kb = 0, msg = 2000, ramp_ms = 0, gstream = 0;
    str xh = {0};
    char b[1024];
    signal(SIGPIPE, SIG_IGN);
    for (int i = 1; i < argc; i++) {
        char *k = argv[i], *v = i + 1 < argc ? argv[i + 1] : NULL;
        if (strncmp(k, "--", 2) || !v) { fprintf(stderr, "bad argument %s\n", k); return 2; }
        i++;
        k += 2;
        if (!strcmp(k, "url")) url = v;
        else if (!strcmp(k, "mode")) mode = !strcmp(v, "stream") ? M_STREAM : !strcmp(v, "growing") ? M_GROWING : M_UNARY;
        else if (!strcmp(k, "api")) api = !strcmp(v, "chat") ? A_CHAT : !strcmp(v, "responses") ? A_RESPONSES : A_MESSAGES;
        else if (!strcmp(k, "path")) pth = v;
        else if (!strcmp(k, "model")) model = v;
        else if (!strcmp(k, "conns")) nconns = atoi(v);
        else if (!strcmp(k, "requests")) max_requests = atol(v);
        else if (!strcmp(k, "duration")) duration = atof(v);
        else if (!strcmp(k, "warmup")) warmup = atof(v);
        else if (!strcmp(k, "ramp-ms")) ramp_ms = atol(v);
        else if (!strcmp(k, "max-s")) max_s = atof(v);
        else if (!strcmp(k, "size-kb")) size_kb = atol(v);
        else if (!strcmp(k, "msg-bytes")) msg = atol(v);
        else if (!strcmp(k, "grow-bytes")) grow_bytes = atol(v);
        else if (!strcmp(k, "steps")) steps = atol(v);
        else if (!strcmp(k, "loops")) loops = atol(v);
        else if (!strcmp(k, "stream")) gstream = atol(v);
        else if (!strcmp(k, "shape")) {
            shape = !strcmp(v, "append") ? S_APPEND : !strcmp(v, "tools") ? S_TOOLS : !strcmp(v, "marks") ? S_MARKS : -1;
            if (shape < 0) { fprintf(stderr, "--shape append, tools or marks\n"); return 2; }
        } else if (!strcmp(k, "distinct")) distinct = atoi(v);
        else if (!strcmp(k, "expect-chunks")) expect_chunks = atol(v);
        else if (!strcmp(k, "close")) one_shot = atoi(v);
        else if (!strcmp(k, "think-ms")) think_ms = atol(v);
        else if (!strcmp(k, "header")) { puts_(&xh, v); puts_(&xh, "\r\n"); }
        else if (!strcmp(k, "chunks") || !strcmp(k, "delay-us") || !strcmp(k, "chunk-bytes") || !strcmp(k, "ttft-ms") ||
                 !strcmp(k, "batch") || !strcmp(k, "reply-bytes")) {
            snprintf(b, sizeof b, "x-bench-%s: %s\r\n", k, v);
            puts_(&xh, b);
        } else { fprintf(stderr, "unknown option --%s\n", k); return 2; }
    }
    if (xh.n > 8000) { fprintf(stderr, "too many headers\n"); return 2; }
    if (max_s > 1800) max_s = 1800;
    if (shape == S_MARKS && (api != A_MESSAGES || mode != M_GROWING)) { fprintf(stderr, "--shape marks is for growing messages\n"); return 2; }
    growing_streams = mode == M_GROWING && gstream;
    if (nconns < 1 || nconns > 20000 || steps < 1 || steps > 100000) { fprintf(stderr, "bad --conns or --steps\n"); return 2; }
    xhdr = xh.s;
    char host[64] = "", prefix[256] = "";
    int port = 80;
    if (!url || sscanf(url, "http://%63[^:/]:%d%255s", host, &port, prefix) < 2) { fprintf(stderr, "need --url http://127.0.0.1:PORT\n"); return 2; }
    if (!strcmp(host, "localhost")) strcpy(host, "127.0.0.1");
    addr.sin_family = AF_INET;
    addr.sin_port = htons(port);
    if (inet_pton(AF_INET, host, &addr.sin_addr) != 1 || (ntohl(addr.sin_addr.s_addr) >> 24) != 127) {
        fprintf(stderr, "loopback targets only\n");
        return 2;
    }
    snprintf(hostport, sizeof hostport, "%.40s:%d", host, port);
    size_t pl = strlen(prefix);
    if (pl && prefix[pl - 1] == '/') prefix[pl - 1] = 0;
    static const char *dp[] = {"/v1/messages", "/v1/chat/completions", "/v1/responses"};
    snprintf(path, sizeof path, "%s%s", prefix, pth ? pth : dp[api]);
    build(size_kb * 1000, msg, mode == M_STREAM || (mode == M_GROWING && gstream));
    if (mode != M_GROWING) {
        size_t bl = strlen(body_head) + histlen + strlen(body_tail);
        req = malloc(16384 + bl);
        reqlen = header(req, 16000, bl);
        memcpy(req + reqlen, body_head, strlen(body_head)); reqlen += strlen(body_head);
        if (histlen) memcpy(req + reqlen, histb, histlen);
        reqlen += histlen;
        memcpy(req + reqlen, body_tail, strlen(body_tail)); reqlen += strlen(body_tail);
    } else {
        step_ms = calloc(steps + 1, sizeof *step_ms);
        step_tt = calloc(steps + 1, sizeof *step_tt);
        step_n = calloc(steps + 1, sizeof *step_n);
    }
    struct rlimit rl;
    getrlimit(RLIMIT_NOFILE, &rl);
    rl.rlim_cur = rl.rlim_max;
    setrlimit(RLIMIT_NOFILE, &rl);
    ep = epoll_create1(EPOLL_CLOEXEC);
    conn *cs = calloc(nconns, sizeof *cs);
    for (int i = 0; i < nconns; i++) { cs[i].fd = -1; cs[i].id = i; cs[i].head = malloc(HEADCAP + 1); }
    alive = nconns;
    t_begin = now_ns();
    t_measure = t_begin + (uint64_t)(warmup * 1e9);
    t_stop = mode == M_GROWING || max_requests ? t_begin + (uint64_t)(max_s * 1e9) : t_begin + (uint64_t)(duration * 1e9);
    uint64_t t_kill = t_begin + (uint64_t)(max_s * 1e9);
    int next = 0;
    struct epoll_event evs[512];
    uint64_t last_done = t_begin;
    while (alive) {
        uint64_t n = now_ns();
        if (n > t_kill) break;
        while (next < nconns && n >= t_begin + (uint64_t)ramp_ms * 1000000ull * next / nconns) { begin(&cs[next++]); n = now_ns(); }
        if (thinking)
            for (int i = 0; i < next; i++)
                if (cs[i].state == C_THINK && n >= cs[i].wake) { thinking--; cs[i].state = C_OFF; begin(&cs[i]); }
        int k = epoll_wait(ep, evs, 512, next < nconns || thinking ? 1 : 100);
        for (int i = 0; i < k; i++) {
            conn *c = evs[i].data.ptr;
            if (c->fd < 0) continue;
            if (c->state == C_THINK) {          /* the peer closed (or spoke): connect anew next time */
                if (evs[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) drop(c);
                continue;
            }
            uint32_t f = evs[i].events;
            if (c->state == C_CONNECT) {
                int e = 0;
                socklen_t l = sizeof e;
                getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &e, &l);
                if (e) { io_errors++; errs++; retire(c); continue; }
                c->state = C_SEND;
                do_send(c);
            } else if (f & (EPOLLIN | EPOLLHUP | EPOLLERR)) on_read(c);
            else if ((f & EPOLLOUT) && c->state == C_SEND) do_send(c);
        }
        last_done = now_ns();
    }
    long unfinished = 0;
    for (int i = 0; i < nconns; i++) if (cs[i].state != C_DONE && cs[i].state != C_OFF && cs[i].state != C_THINK) unfinished++;
    double el = (last_done - t_measure) / 1e9;
    if (el <= 0) el = 1e-9;
    struct rusage ru;
    getrusage(RUSAGE_SELF, &ru);
    printf("{\"mode\":\"%s\",\"conns\":%d,\"body_bytes\":%zu,\"elapsed_s\":%.4f,\"requests\":%llu,\"rps\":%.2f,"
           "\"errors\":%llu,\"bad_status\":%llu,\"first_bad_status\":%d,\"io_errors\":%llu,\"incomplete\":%llu,\"unfinished\":%ld,"
           "\"reconnects\":%llu,\"bytes_out\":%llu,\"bytes_in\":%llu,",
           mode == M_UNARY ? "unary" : mode == M_STREAM ? "stream" : "growing", nconns,
           strlen(body_head) + histlen + strlen(body_tail), el, (unsigned long long)ok, ok / el, (unsigned long long)errs,
           (unsigned long long)bad_status, first_bad, (unsigned long long)io_errors, (unsigned long long)incomplete, unfinished,
           (unsigned long long)reconnects, (unsigned long long)bytes_out, (unsigned long long)bytes_in);
    printf("\"total_requests\":%llu,\"total_chunks\":%llu,\"client_cpu_s\":%.3f,"
           "\"latency_us\":{\"p50\":%.1f,\"p90\":%.1f,\"p99\":%.1f,\"max\":%.1f,\"mean\":%.1f},"
           "\"ttfb_us\":{\"p50\":%.1f,\"p90\":%.1f,\"p99\":%.1f,\"max\":%.1f}",
           (unsigned long long)all_ok, (unsigned long long)all_chunks,
           ru.ru_utime.tv_sec + ru.ru_stime.tv_sec + (ru.ru_utime.tv_usec + ru.ru_stime.tv_usec) / 1e6,
           hq(&lat, .5), hq(&lat, .9), hq(&lat, .99), lat.max / 1e3, lat.n ? lat.sum / lat.n / 1e3 : 0,
           hq(&ttfb, .5), hq(&ttfb, .9), hq(&ttfb, .99), ttfb.max / 1e3);
    if (mode != M_UNARY)
        printf(",\"chunks\":%llu,\"chunks_per_s\":%.1f,\"chunk_delay_us\":{\"p50\":%.1f,\"p90\":%.1f,\"p99\":%.1f,\"max\":%.1f}",
               (unsigned long long)chunks, chunks / el, hq(&chunk, .5), hq(&chunk, .9), hq(&chunk, .99), chunk.max / 1e3);
    if (mode == M_GROWING) {
        double sx = 0, sy = 0, sxx = 0, sxy = 0, tot = 0;
        long n = 0;
        printf(",\"steps\":[");
        for (long s = 1; s <= steps; s++) {
            if (!step_n[s]) continue;
            double y = step_ms[s] / step_n[s], x = step_off[s] / 1e6;
            printf("%s[%zu,%.3f,%.3f]", n ? "," : "", step_off[s], y, step_tt[s] / step_n[s]);
            n++; sx += x; sy += y; sxx += x * x; sxy += x * y; tot += y;
        }
        double slope = n > 1 && n * sxx - sx * sx > 0 ? (n * sxy - sx * sy) / (n * sxx - sx * sx) : 0;
        printf("],\"steps_done\":%ld,\"loop_ms\":%.2f,\"ms_per_mb\":%.4f,\"ms_fixed\":%.4f", n, tot, slope, n ? (sy - slope * sx) / n : 0);
    }
    printf("}\n");
    return 0;
}
