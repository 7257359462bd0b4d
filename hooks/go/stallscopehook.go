// Package stallscope tells the stallscope agent beside this program what only the program itself knows: requests in
// flight, work that goes on after a response, connection pools, log queues that it is given, how many CPUs the runtime
// uses, and whether timers come late.
//
//	func main() {
//		defer stallscope.Stop() // the last word; without it the agent sees that the process is gone
//		stallscope.WatchPool("main", pool)           // a pgxpool.Pool
//		stallscope.WatchDB("reports", db)            // a sql.DB
//		http.ListenAndServe(":8080", stallscope.Middleware(mux))
//	}
//
// One goroutine looks every 2 s and sends a datagram when something changed or waits, else every 10 s; that the first
// request came or the last one ended is sent at once, ten times in a row and then twice a second. It never panics, and
// nothing waits for it. Any call starts it; a program that has none of the above calls [Start].
//
// STALLSCOPE_HOOK is udp:127.0.0.1:9769 (the default; loopback only), unix:/path, file:/path (rewritten as /path.PID) or
// off: then nothing starts, and Middleware hands the handler back. STALLSCOPE_HOOK_NAME names the process.
// STALLSCOPE_HOOK_LOGS=stdout, or [WatchLogs], vouches that log entries leave by standard output and the watched queues alone.
//
// Go 1.21 or later, standard library only. Copy the file, or require the module (hooks/README.md).
package stallscope

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	lookEvery                        = 2 * time.Second
	quiet                            = 10 * time.Second // between two messages while nothing changes and nothing waits
	soon                             = 500 * time.Millisecond
	atOnce                           = 10               // messages in a row of the first request and the last
	lateFrom                         = time.Second      // later than this a timer is told as late
	sendWithin                       = time.Millisecond // a full unix socket is not waited for
	stopWithin                       = time.Second      // nor is a look that somebody's function holds up
	mostBytes                        = 8192             // of a message
	mostNumber                       = 1e15             // a larger one is none that the agent believes
	mostQueues, mostPools, mostNames = 16, 16, 8
	longestName, longestProcess      = 60, 40
	allowed                          = "udp:127.0.0.1:PORT, unix:/PATH, file:/PATH, off"
)

// Modules that keep log entries to themselves until they are sent; only a watched queue tells of them.
var keepers = []string{
	"cloud.google.com/go/logging", "go.opentelemetry.io/otel/sdk/log", "github.com/getsentry/sentry-go",
	"github.com/fluent/fluent-logger-golang", "github.com/grafana/loki-client-go", "github.com/newrelic/go-agent/v3",
	"github.com/DataDog/datadog-api-client-go/v2", "github.com/aws/aws-sdk-go-v2/service/cloudwatchlogs",
}

// PoolStats is what a pool of connections tells of itself. A Size of 0 is without limit; the totals count from its start.
type PoolStats struct {
	Size, CheckedOut int
	Waiting          int           // requests that wait now; a negative number is not known
	Acquires         int64         // connections handed out; 0 is not known
	Waits            int64         // of them those that had to wait
	WaitTime         time.Duration // spent waiting, all requests together
}

// QueueStats is what a queue of log entries tells of itself. A zero is "not known" in every field but Entries.
type QueueStats struct {
	Entries, MostEntries      int
	Bytes, MostBytes          int64
	Oldest                    time.Duration // age of the first entry
	Arrived, Drained, Dropped int64         // totals since the process began
	Errors                    int64         // deliveries that failed
}

type pool struct {
	name  string
	stats func() (PoolStats, bool)
}

type queue struct {
	name  string
	stats func() map[string]any
}

// Work that goes on although the response is sent. Guarded by hook.work.
type piece struct {
	since, told time.Time
	held, done  bool
}

type hook struct {
	kind, address string
	inFlight      atomic.Int64
	counts        atomic.Bool // whether requests are counted here
	vouched       atomic.Bool
	soon          atomic.Bool // the goroutine tells it within half a second
	wake          chan struct{}
	quit, ended   chan struct{}
	stop          sync.Once

	mutex   sync.Mutex // of what follows; never held while a function of the program runs
	pools   []pool
	queues  []queue
	conn    net.Conn
	newest  map[string]any
	said    string
	saidAt  time.Time
	spare   float64
	sparing time.Time
	over    bool // the last word is said

	work     sync.Mutex // of what follows
	after    map[*piece]struct{}
	pieces   int
	seconds  float64
	looked   time.Time
	late     int // of the hook's own timer
	lateness float64
}

var (
	starting sync.Once
	current  *hook
	identity map[string]any
)

// Start begins to tell. Every other function here does it too, so that it is needed only where none of them is called.
func Start() { started() }

// Stop says what is left and ends the goroutine; nothing is told after it. It waits a second at most.
func Stop() {
	if h := started(); h != nil {
		h.stop.Do(func() { close(h.quit) })
		select {
		case <-h.ended:
		case <-time.After(stopWithin):
		}
	}
}

func started() *hook {
	starting.Do(func() {
		defer func() { _ = recover() }()
		kind, address, ok := place(os.Getenv("STALLSCOPE_HOOK"))
		if !ok {
			return
		}
		identity = identify()
		current = newHook(kind, address)
		current.vouched.Store(os.Getenv("STALLSCOPE_HOOK_LOGS") == "stdout")
		go current.run()
	})
	return current
}

func newHook(kind, address string) *hook {
	now := time.Now()
	return &hook{
		kind: kind, address: address, wake: make(chan struct{}, 1), quit: make(chan struct{}), ended: make(chan struct{}),
		spare: atOnce, sparing: now, looked: now, after: map[*piece]struct{}{},
	}
}

// Where STALLSCOPE_HOOK says that messages go; false: nowhere.
func place(text string) (kind, address string, ok bool) {
	if text == "" {
		text = "udp:127.0.0.1:9769"
	}
	kind, rest, _ := strings.Cut(text, ":")
	switch {
	case text == "off":
		return "", "", false
	case (kind == "unix" || kind == "file") && strings.HasPrefix(rest, "/"):
		return kind, rest, true
	case kind == "udp":
		host, port, err := net.SplitHostPort(rest)
		if host == "localhost" {
			host = "127.0.0.1"
		}
		number, wrong := strconv.ParseUint(port, 10, 16)
		if ip := net.ParseIP(host); err == nil && wrong == nil && number > 0 && ip != nil && ip.IsLoopback() {
			return kind, net.JoinHostPort(host, port), true
		}
	}
	_, _ = os.Stderr.WriteString("stallscope: STALLSCOPE_HOOK=" + strconv.Quote(text) + " is none of " + allowed + "; nothing is reported\n")
	return "", "", false
}

// What every message begins with; the token tells a process from another that has its number, before it or elsewhere.
func identify() map[string]any {
	name := os.Getenv("STALLSCOPE_HOOK_NAME")
	if name == "" && len(os.Args) > 0 {
		name = filepath.Base(os.Args[0])
	}
	if name == "" {
		name = "go"
	}
	found := map[string]any{
		"v": 1, "pid": os.Getpid(), "name": cut(name, longestProcess), "start": strconv.FormatInt(time.Now().UnixNano(), 36),
	}
	if namespace, err := os.Readlink("/proc/self/ns/pid"); err == nil {
		found["pid_ns"] = cut(namespace, longestProcess)
	}
	return found
}

func cut(name string, most int) string {
	if runes := []rune(name); len(runes) > most {
		return string(runes[:most])
	}
	return name
}

func (h *hook) run() {
	defer close(h.ended)
	every := lookEvery / 8 // what is made at the start is told soon
	due := time.Now().Add(every)
	for {
		timer := time.NewTimer(time.Until(due))
		select {
		case <-h.quit:
			timer.Stop()
			h.look(true)
			return
		case <-h.wake:
			timer.Stop()
			select {
			case <-h.quit:
				continue
			case <-time.After(soon):
			}
			h.soon.Store(false)
			h.mutex.Lock()
			h.spare--
			h.sendNewest()
			h.mutex.Unlock()
		case <-timer.C:
		}
		if now := time.Now(); !now.Before(due) {
			h.note(now.Sub(due))
			every = min(lookEvery, 2*every)
			due = now.Add(every)
			h.look(false)
		}
	}
}

func (h *hook) note(late time.Duration) {
	if late >= lateFrom {
		h.work.Lock()
		h.late++
		h.lateness += late.Seconds()
		h.work.Unlock()
	}
}

// look asks everything that is watched, and sends what there is to say.
func (h *hook) look(last bool) {
	defer func() { _ = recover() }()
	message, waits := h.message()
	if last {
		pending := 0
		for _, each := range message["queues"].([]map[string]any) {
			entries, _ := each["entries"].(int)
			pending += entries
		}
		message["exit"] = map[string]any{"pending": pending}
	}
	told := message["runtime"]
	delete(message, "runtime") // how many goroutines there are changes all the time
	compared, _ := json.Marshal(message)
	message["runtime"] = told
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.newest = message
	if now := time.Now(); waits || last || string(compared) != h.said || now.Sub(h.saidAt) >= quiet {
		h.said, h.saidAt = string(compared), now
		h.sendNewest()
	}
	if last {
		h.over = true
		if h.conn != nil {
			_ = h.conn.Close()
		}
	}
}

// The message of the protocol, and whether something waits in it.
func (h *hook) message() (message map[string]any, waits bool) {
	h.mutex.Lock()
	pools, queues := append([]pool(nil), h.pools...), append([]queue(nil), h.queues...)
	h.mutex.Unlock()
	message = map[string]any{"log": h.loggers(), "runtime": map[string]any{
		"name": "go", "version": cut(runtime.Version(), longestProcess), "cpus": runtime.GOMAXPROCS(0),
		"machine_cpus": runtime.NumCPU(), "goroutines": runtime.NumGoroutine(),
	}}
	rows := []map[string]any{}
	for _, each := range queues {
		if row := each.row(); row != nil {
			rows = append(rows, row)
			entries, _ := row["entries"].(int)
			bytes, _ := row["bytes"].(int64)
			waits = waits || entries > 0 || bytes > 0
		}
	}
	message["queues"] = rows
	found := map[string]any{}
	for _, each := range pools {
		if row := each.row(); row != nil {
			found[each.name] = row
			waiting, _ := row["waiting"].(int)
			waits = waits || waiting > 0
		}
	}
	if len(found) > 0 {
		message["pool"] = found
	}
	now := time.Now()
	h.work.Lock()
	running := 0
	for each := range h.after {
		if !each.since.After(h.looked) { // it outlived a look: the last lines of a handler do not
			running++
			if !each.held {
				each.held = true
				h.pieces++
			}
			h.seconds += now.Sub(each.told).Seconds()
			each.told = now
		}
	}
	h.looked = now
	if h.counts.Load() || h.pieces > 0 {
		message["after_response"] = map[string]any{"now": running, "pieces": h.pieces, "seconds": rounded(h.seconds)}
	}
	message["timers"] = map[string]any{"late": h.late, "late_seconds": rounded(h.lateness)}
	h.work.Unlock()
	return message, waits || running > 0 || h.inFlight.Load() > 0
}

func rounded(seconds float64) float64 { return float64(int64(seconds*1000)) / 1000 }

// Of the program's loggers nothing can be found: who vouches for them is believed.
func (h *hook) loggers() map[string]any {
	if h.vouched.Load() {
		return map[string]any{"hook": "go", "known": []string{"standard output"}, "unread": []string{}, "elsewhere": []string{}}
	}
	return map[string]any{"hook": "go", "known": []string{}, "unread": linked(), "elsewhere": []string{"goroutines of its own"}}
}

// Which of the keepers are linked into this program.
var linked = sync.OnceValue(func() []string {
	found := []string{}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			for _, keeper := range keepers {
				if module.Path == keeper && len(found) < mostNames {
					found = append(found, cut(keeper, longestName))
				}
			}
		}
	}
	return found
})

// sendNewest sends what was told last with the requests of now. The mutex is held.
func (h *hook) sendNewest() {
	if h.over {
		return
	}
	message := map[string]any{}
	for _, part := range []map[string]any{h.newest, identity} {
		for key, value := range part {
			message[key] = value
		}
	}
	if h.counts.Load() {
		message["in_flight"] = max(0, h.inFlight.Load())
	}
	data, err := json.Marshal(message)
	for _, part := range []string{"pool", "queues"} { // of names that take six bytes a letter
		if len(data) > mostBytes {
			delete(message, part)
			data, err = json.Marshal(message)
		}
	}
	if err == nil {
		h.send(data)
	}
}

func (h *hook) send(data []byte) {
	if h.kind == "file" {
		target := h.address + "." + strconv.Itoa(os.Getpid())
		_ = os.Remove(target + ".tmp") // and no link is followed
		if file, err := os.OpenFile(target+".tmp", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644); err == nil {
			_, err = file.Write(data)
			if closed := file.Close(); err == nil && closed == nil {
				_ = os.Rename(target+".tmp", target)
			}
		}
		return
	}
	network := map[string]string{"udp": "udp", "unix": "unixgram"}[h.kind]
	for range [2]struct{}{} { // the first error may be that an earlier message reached nobody
		if h.conn == nil {
			conn, err := net.Dial(network, h.address)
			if err != nil {
				return
			}
			h.conn = conn
		}
		_ = h.conn.SetWriteDeadline(time.Now().Add(sendWithin))
		if _, err := h.conn.Write(data); err == nil {
			return
		}
		_ = h.conn.Close()
		h.conn = nil
	}
}

// ---- requests

// Middleware counts the requests in flight: each ends with its response, as platforms see it. That is when the handler
// returns, or over HTTP/1 when it has flushed all that its Content-Length promised (or a response that has no body): what the
// handler does from then on is work after the response. A connection that is hijacked is in flight until its handler returns.
func Middleware(next http.Handler) http.Handler {
	h := started()
	if next == nil {
		next = http.DefaultServeMux
	}
	if h == nil {
		return next
	}
	h.counts.Store(true)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.serve(next, w, r) })
}

// Request counts one of another server, such as gRPC: end it when its response is sent, and hand the context on.
func Request(ctx context.Context) (in context.Context, end func()) {
	h := started()
	if h == nil {
		return ctx, func() {}
	}
	h.counts.Store(true)
	if ctx == nil {
		ctx = context.Background()
	}
	q := &request{Context: ctx, hook: h}
	h.begin()
	return q, q.end
}

// After is `go work()`, told as work after the response: from the end of the context's request on, where it has one, else at once.
func After(ctx context.Context, work func()) {
	done := AfterResponse(ctx)
	go func() {
		defer done()
		work()
	}()
}

// AfterResponse says that work goes on until done is called, whatever becomes of the response: call it in the handler,
// where the goroutine is started or the channel written to.
func AfterResponse(ctx context.Context) (done func()) {
	h := started()
	if h == nil {
		return func() {}
	}
	p := &piece{}
	q, _ := value(ctx).(*request)
	if q == nil || !q.hold(p) {
		h.enter(p)
	}
	return func() { h.leave(p) }
}

func value(ctx context.Context) any {
	if ctx == nil {
		return nil
	}
	return ctx.Value(key{})
}

type key struct{}

// A request is its own context, by which work finds it.
type request struct {
	context.Context
	hook   *hook
	answer answer
	early  *piece // the handler itself, when it goes on

	mutex sync.Mutex
	over  bool
	held  []*piece
}

func (q *request) Value(k any) any {
	if k == (key{}) {
		return q
	}
	return q.Context.Value(k)
}

func (h *hook) serve(next http.Handler, w http.ResponseWriter, r *http.Request) {
	if _, known := value(r.Context()).(*request); known { // by a middleware further out
		next.ServeHTTP(w, r)
		return
	}
	q := &request{Context: r.Context(), hook: h}
	h.begin()
	defer q.returned()
	// Only the standard server's own writer is wrapped: nothing that another one can do gets lost.
	if whole, ok := w.(writer); ok && r.ProtoMajor == 1 {
		q.answer = answer{writer: whole, request: q, bare: r.Method == http.MethodHead, lacks: -1}
		w = &q.answer
	}
	next.ServeHTTP(w, r.WithContext(q))
}

func (q *request) hold(p *piece) bool {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	if !q.over {
		q.held = append(q.held, p)
	}
	return !q.over
}

// end is the end of the response.
func (q *request) end() {
	q.mutex.Lock()
	before, held := q.over, q.held
	q.over, q.held = true, nil
	q.mutex.Unlock()
	for _, each := range held {
		q.hook.enter(each)
	}
	if !before {
		q.hook.end()
	}
}

// returned is the end of the handler, by a panic too.
func (q *request) returned() {
	if q.early != nil {
		q.hook.leave(q.early)
	}
	q.end()
}

// answered: the client gets the whole response now, and the handler goes on.
func (q *request) answered() {
	if q.early == nil {
		q.early = &piece{}
		q.hook.enter(q.early)
		q.end()
	}
}

// What the standard server's writer can do over HTTP/1.
type writer interface {
	http.ResponseWriter
	io.StringWriter
	io.ReaderFrom
	http.Flusher
	http.Hijacker
	CloseNotify() <-chan bool
	FlushError() error
	SetReadDeadline(time.Time) error
	SetWriteDeadline(time.Time) error
	EnableFullDuplex() error
}

type answer struct {
	writer
	request *request
	lacks   int64 // bytes that the response still needs; below 0: not known
	bare    bool  // of a HEAD
	begun   bool
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.writer }

func (a *answer) begin(status int) {
	if a.begun || (status >= 100 && status < 200) {
		return
	}
	a.begun = true
	if a.bare || status == http.StatusNoContent || status == http.StatusNotModified {
		a.lacks = 0
	} else if length, err := strconv.ParseInt(a.Header().Get("Content-Length"), 10, 64); err == nil {
		a.lacks = length
	}
}

func (a *answer) wrote(n int64) {
	if a.lacks > 0 {
		a.lacks -= n
	}
}

func (a *answer) WriteHeader(status int) {
	a.begin(status)
	a.writer.WriteHeader(status)
}

func (a *answer) Write(data []byte) (int, error) {
	a.begin(http.StatusOK)
	n, err := a.writer.Write(data)
	a.wrote(int64(n))
	return n, err
}

func (a *answer) WriteString(data string) (int, error) {
	a.begin(http.StatusOK)
	n, err := a.writer.WriteString(data)
	a.wrote(int64(n))
	return n, err
}

func (a *answer) ReadFrom(source io.Reader) (int64, error) {
	a.begin(http.StatusOK)
	n, err := a.writer.ReadFrom(source)
	a.wrote(n)
	return n, err
}

func (a *answer) Flush() { _ = a.FlushError() }

func (a *answer) FlushError() error {
	a.begin(http.StatusOK)
	if a.lacks == 0 {
		a.request.answered() // before the platform knows
	}
	return a.writer.FlushError()
}

func (a *answer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	a.begun, a.lacks = true, -1
	return a.writer.Hijack()
}

func (h *hook) begin() {
	if h.inFlight.Add(1) == 1 {
		h.turn()
	}
}

func (h *hook) end() {
	if h.inFlight.Add(-1) == 0 {
		h.turn()
	}
}

// turn tells that the first request came or the last one ended, before its response is out.
func (h *hook) turn() {
	if h.soon.Load() {
		return
	}
	if h.mutex.TryLock() {
		now := time.Now()
		h.spare = min(atOnce, h.spare+float64(now.Sub(h.sparing))/float64(soon))
		h.sparing = now
		if h.spare >= 1 && h.kind != "file" {
			h.spare--
			h.sendNewest()
			h.mutex.Unlock()
			return
		}
		h.mutex.Unlock()
	}
	if h.soon.CompareAndSwap(false, true) {
		select {
		case h.wake <- struct{}{}:
		default:
		}
	}
}

func (h *hook) enter(p *piece) {
	h.work.Lock()
	defer h.work.Unlock()
	if !p.done {
		p.since = time.Now()
		p.told = p.since
		h.after[p] = struct{}{}
	}
}

func (h *hook) leave(p *piece) {
	h.work.Lock()
	defer h.work.Unlock()
	if p.held && !p.done {
		h.seconds += time.Since(p.told).Seconds()
	}
	p.done = true
	delete(h.after, p)
}

// ---- what is watched

// WatchDB reports the pool of a sql.DB. Without SetMaxOpenConns it has no size.
func WatchDB(name string, db *sql.DB) {
	if db != nil {
		watchPool(name, func() (PoolStats, bool) {
			s := db.Stats()
			return PoolStats{Size: s.MaxOpenConnections, CheckedOut: s.InUse, Waiting: -1, Waits: s.WaitCount, WaitTime: s.WaitDuration}, true
		})
	}
}

// WatchPool reports a pgxpool.Pool, or what a func() PoolStats tells. Anything else is passed over.
func WatchPool(name string, pool any) {
	switch known := pool.(type) {
	case nil:
	case func() PoolStats:
		if known != nil {
			watchPool(name, func() (PoolStats, bool) { return known(), true })
		}
	case *sql.DB:
		WatchDB(name, known)
	default:
		if method := reflect.ValueOf(pool).MethodByName("Stat"); method.IsValid() && method.Type().NumIn() == 0 && method.Type().NumOut() == 1 {
			watchPool(name, func() (PoolStats, bool) { return ofPgx(method.Call(nil)[0].Interface()) })
		}
	}
}

// What pgxpool.Stat has, of versions 4 and 5.
func ofPgx(stat any) (PoolStats, bool) {
	s, ok := stat.(interface {
		MaxConns() int32
		AcquiredConns() int32
		AcquireCount() int64
		EmptyAcquireCount() int64
		AcquireDuration() time.Duration
	})
	if !ok {
		return PoolStats{}, false
	}
	return PoolStats{
		Size: int(s.MaxConns()), CheckedOut: int(s.AcquiredConns()), Waiting: -1, Acquires: s.AcquireCount(),
		Waits: s.EmptyAcquireCount(), WaitTime: s.AcquireDuration(),
	}, true
}

func watchPool(name string, stats func() (PoolStats, bool)) {
	if h := started(); h != nil {
		h.mutex.Lock()
		defer h.mutex.Unlock()
		name = named(name, "pool", func(tried string) bool {
			for _, each := range h.pools {
				if each.name == tried {
					return true
				}
			}
			return false
		})
		if len(h.pools) < mostPools {
			h.pools = append(h.pools, pool{name, stats})
		}
	}
}

// WatchQueue reports a queue of log entries: a channel, or what a func() QueueStats tells. Anything else is passed over.
func WatchQueue(name string, source any) {
	if stats, ok := source.(func() QueueStats); ok {
		if stats != nil {
			watchQueue(name, func() map[string]any { return stats().row() })
		}
	} else if channel := reflect.ValueOf(source); channel.Kind() == reflect.Chan && !channel.IsNil() {
		watchQueue(name, func() map[string]any { return QueueStats{Entries: channel.Len(), MostEntries: channel.Cap()}.row() })
	}
}

func watchQueue(name string, stats func() map[string]any) {
	if h := started(); h != nil {
		h.mutex.Lock()
		defer h.mutex.Unlock()
		name = named(name, "queue", func(tried string) bool {
			for _, each := range h.queues {
				if each.name == tried {
					return true
				}
			}
			return false
		})
		if len(h.queues) < mostQueues {
			h.queues = append(h.queues, queue{name, stats})
		}
	}
}

// WatchLogs vouches that log entries leave by standard output, which holds nothing back here, and by the watched queues alone.
func WatchLogs() {
	if h := started(); h != nil {
		h.vouched.Store(true)
	}
}

func named(name, otherwise string, taken func(string) bool) string {
	if name == "" {
		name = otherwise
	}
	tried := cut(name, longestName)
	for n := 2; taken(tried); n++ {
		tried = cut(name, longestName-4) + "-" + strconv.Itoa(n)
	}
	return tried
}

func (p pool) row() (row map[string]any) {
	defer func() {
		if recover() != nil {
			row = nil
		}
	}()
	s, ok := p.stats()
	if !ok {
		return nil
	}
	row = map[string]any{"checked_out": max(0, s.CheckedOut), "wait_seconds": rounded(max(0, s.WaitTime.Seconds())), "waits": max(0, s.Waits)}
	for name, number := range map[string]int{"size": s.Size, "waiting": s.Waiting, "acquires": int(s.Acquires)} {
		if number > 0 || (number == 0 && name == "waiting") {
			row[name] = number
		}
	}
	return believable(row)
}

func (q queue) row() (row map[string]any) {
	defer func() {
		if recover() != nil {
			row = nil
		}
	}()
	row = q.stats()
	row["queue"], row["kind"] = q.name, "go"
	return believable(row)
}

// For one number that it does not believe, such as a limit of math.MaxInt64, the agent refuses the whole message.
func believable(row map[string]any) map[string]any {
	for name, value := range row {
		number := reflect.ValueOf(value)
		if (number.CanInt() && float64(number.Int()) > mostNumber) || (number.CanFloat() && number.Float() > mostNumber) {
			delete(row, name)
		}
	}
	return row
}

func (s QueueStats) row() map[string]any {
	row := map[string]any{"entries": max(0, s.Entries)}
	for name, number := range map[string]int64{
		"most_entries": int64(s.MostEntries), "bytes": s.Bytes, "most_bytes": s.MostBytes, "arrived": s.Arrived,
		"drained": s.Drained, "dropped": s.Dropped, "errors": s.Errors,
	} {
		if number > 0 {
			row[name] = number
		}
	}
	if s.Oldest > 0 {
		row["oldest_seconds"] = rounded(s.Oldest.Seconds())
	}
	return row
}

// Buffer reports what waits between two writers, such as in zap's BufferedWriteSyncer or zerolog's diode, which do not tell:
//
//	b := stallscope.WatchBuffer("zap")
//	sink := &zapcore.BufferedWriteSyncer{WS: zapcore.AddSync(b.Out(os.Stdout))}
//	core := zapcore.NewCore(encoder, zapcore.AddSync(b.In(sink)), level)
type Buffer struct{ in, out, entriesIn, entriesOut, dropped atomic.Int64 }

// WatchBuffer begins to report one.
func WatchBuffer(name string) *Buffer {
	b := &Buffer{}
	watchQueue(name, b.row)
	return b
}

// In counts what is written into the buffer.
func (b *Buffer) In(w io.Writer) io.Writer { return &counted{w, &b.in, &b.entriesIn} }

// Out counts what the buffer writes.
func (b *Buffer) Out(w io.Writer) io.Writer { return &counted{w, &b.out, &b.entriesOut} }

// Drop counts entries that the buffer threw away: a diode's alerter.
func (b *Buffer) Drop(entries int) { b.dropped.Add(int64(entries)) }

// Bytes, as long as all of them come out again; entries of a buffer that drops some, and so writes each by itself.
func (b *Buffer) row() map[string]any {
	if dropped := b.dropped.Load(); dropped > 0 {
		drained := b.entriesOut.Load()
		arrived := b.entriesIn.Load()
		return map[string]any{"entries": int(max(0, arrived-drained-dropped)), "arrived": arrived, "drained": drained, "dropped": dropped}
	}
	out := b.out.Load()
	return map[string]any{"bytes": max(0, b.in.Load()-out)}
}

type counted struct {
	io.Writer
	bytes, writes *atomic.Int64
}

func (c *counted) Write(data []byte) (int, error) {
	n, err := c.Writer.Write(data)
	c.bytes.Add(int64(max(0, n)))
	c.writes.Add(1)
	return n, err
}

// Sync is for loggers that ask for it.
func (c *counted) Sync() error {
	if s, ok := c.Writer.(interface{ Sync() error }); ok {
		return s.Sync()
	}
	return nil
}
