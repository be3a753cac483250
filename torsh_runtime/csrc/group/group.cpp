#include "group/group.hpp"

#include <algorithm>
#include <limits>

#include "common/clock.hpp"
#include "group/operations.hpp"
#include "group/wait.hpp"
#include "transport/tcp/socket_stream.hpp"
#include "transport/waiting.hpp"

namespace torsh {
namespace {

constexpr double patience = 0.02;   // seconds to wait for ranks that may be about to call
constexpr unsigned most_vain = 8;
constexpr double quiet = 0.1;       // seconds of a wait that are not worth a note
constexpr double renewal = 1;       // seconds after which a note is renewed
constexpr double roll_call = 0.25;  // seconds within which ranks of other nodes answer

bool contains(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

bool is_in_nodes(across::Strategy strategy) {
  return strategy == across::Strategy::adaptive || strategy == across::Strategy::hierarchical;
}

// Which way the bytes of a group's collectives go.
Path path_of(const Layout& layout) {
  if (layout.num_nodes() == 1) return Path::shared_memory;
  return layout.is_flat() ? Path::network : Path::both;
}

shm::Setup node_of(const GroupSetup& setup) {
  shm::Setup node = setup.node;
  node.path = path_of(setup.layout);
  return node;
}

}  // namespace

Group::Group(GroupSetup setup)
    : layout_(setup.layout),
      ranks_(setup.layout.ranks()),
      interrupted_(setup.interrupted),
      job_ranks_(setup.job_ranks),
      control_(control(setup)),
      channel_(node_of(setup), hooks()),
      messages_(messenger(setup)),
      team_{layout_, channel_, *messages_, setup.strategy, setup.limits, {}, 0, 0, scratch_,
            {layout_, !is_in_nodes(setup.strategy)}} {
  watch_neighbours();
}

std::unique_ptr<tcp::Control> Group::control(GroupSetup& setup) {
  std::vector<std::pair<int, Descriptor>> sockets;
  for (std::size_t peer = 0; peer < setup.links.size(); ++peer) {
    if (!setup.links[peer].empty()) sockets.emplace_back(static_cast<int>(peer), std::move(setup.links[peer].front()));
  }
  if (sockets.empty()) return nullptr;
  return std::make_unique<tcp::Control>(ranks_, std::move(sockets), setup.heartbeat, [this] { return channel_.sequence(); });
}

shm::Hooks Group::hooks() {
  if (!control_) return {interrupted_, {}, {}, {}};
  return {interrupted_, [this] { take_news(); }, [this](const Failure& failure) { control_->announce(failure); },
          [this](std::uint64_t sequence) { return absent_elsewhere(sequence); }};
}

std::unique_ptr<Messenger> Group::messenger(GroupSetup& setup) {
  MessengerSetup made;
  shm::Segment& segment = channel_.segment();
  made.rank = layout_.rank;
  made.wakeup = std::make_unique<shm::WakeupSocket>(segment.area(channel_.rank()).wakeup);
  made.streams.resize(static_cast<std::size_t>(ranks_));
  for (int index = 0; index < channel_.ranks(); ++index) {
    const int peer = layout_.local()[static_cast<std::size_t>(index)];
    if (peer == layout_.rank) continue;
    made.streams[static_cast<std::size_t>(peer)].push_back(std::make_unique<shm::RingStream>(
        segment.ring(channel_.rank(), index), segment.ring(index, channel_.rank()), segment.ring_capacity(), *made.wakeup,
        segment.area(index).wakeup));
  }
  for (std::size_t peer = 0; peer < setup.links.size(); ++peer) {
    for (std::size_t lane = 1; lane < setup.links[peer].size(); ++lane) {
      tcp::prepare(setup.links[peer][lane].number(), setup.heartbeat, tcp::Use::data);
      made.streams[peer].push_back(std::make_unique<tcp::SocketStream>(std::move(setup.links[peer][lane])));
    }
  }
  made.recorder = setup.node.recorder;
  made.paths.assign(static_cast<std::size_t>(ranks_), Path::network);
  for (const int peer : layout_.local()) made.paths[static_cast<std::size_t>(peer)] = Path::shared_memory;
  if (!in_node()) made.paths[static_cast<std::size_t>(layout_.rank)] = layout_.is_flat() ? Path::network : Path::unknown;
  made.idling = [this] { return idling(); };
  made.threads_have_cpus = [this] { return channel_.threads_have_cpus(); };
  made.alarm = control_ ? control_->descriptor() : -1;
  made.check = [this] { check(); };
  made.peer_state = [this](int peer) { return peer_state(peer); };
  made.failed = [this](const Failure& failure) {
    if (!channel_.failed()) channel_.end(judge(failure));
  };
  return std::make_unique<Messenger>(std::move(made));
}

// A waiting thread may use the CPU if each rank has one for itself and the program does not compute on it meanwhile.
Idling Group::idling() const {
  if (queue_.is_here() && !queue_.is_awaited()) return Idling::sleep;
  return channel_.has_cpu_per_rank() ? Idling::spin : Idling::yield;
}

// Current messages end with a group that another rank has ended.
void Group::begin(std::optional<shm::Channel::Operation>& under_way, const Call& call, double timeout, bool background) {
  try {
    under_way.emplace(channel_, call, timeout, background);
  } catch (const Failure& failure) {
    if (failure.kind < FailureKind::closed) messages_->fail(failure);
    throw;
  }
}

across::Team& Group::team() {
  const bool is_recorded = channel_.recorded().is_under_way();
  team_.label = {.purpose = Purpose::collective, .tag = channel_.sequence(), .call = *call_, .is_recorded = is_recorded};
  team_.attendance.begin();
  team_.deadline = channel_.deadline();
  team_.timeout = channel_.timeout();
  messages_->begin(team_.label);
  return team_;
}

void Group::handshake(double timeout, std::optional<bool> known_cross_memory) {
  const auto meeting = [known_cross_memory](Group& group) {
    in_node::handshake(group.channel(), known_cross_memory);
    if (!group.in_node()) across::barrier(group.team());
  };
  execute(Call{.kind = OpKind::barrier}, meeting, timeout, false);
}

void Group::add_region(std::byte* base, std::size_t stride, std::size_t bytes, double timeout) {
  const auto add = [=, this](Group& group) {
    shm::Channel& channel = group.channel();
    std::vector<std::byte*> bases;
    for (int peer = 0; peer < channel.ranks(); ++peer) bases.push_back(base + stride * static_cast<std::size_t>(peer));
    channel.regions().add(++regions_, channel.rank(), bytes, std::move(bases));
    Barrier()(group);
  };
  // Makes ranks that want different sizes disagree.
  const Call call{.kind = OpKind::barrier, .dtype = DType::uint8, .dims = 1, .count = bytes, .shape = {bytes}};
  perform(call, add, timeout);
}

bool Group::all_come() {
  channel_.check_fork();
  if (!in_node() || !queue_.idle()) return false;
  const bool is_patient = impatient_ == 0;
  if (!is_patient) --impatient_;
  const bool came = channel_.all_come(is_patient ? patience : 0);
  if (is_patient) {
    vain_ = came ? 0 : std::min(vain_.load() + 1, most_vain);
    impatient_ = came ? 0 : 1u << vain_;
  }
  return came;
}

// A rank that always finds its messages there would check for failures nowhere else.
void Group::check_message(int peer, const Label& label) {
  channel_.check_fork();
  guarded_message(peer, label, [&] { channel_.check_abort(); });
}

Label Group::labelled(const Label& label) const {
  Label found = label;
  if (label.awaited == Awaited::at_once && queue_.is_here()) found.awaited = Awaited::on_queue;
  return found;
}

TransferPtr Group::send(int peer, const Label& label, Piece data) {
  check_message(peer, label);
  return messages_->send(peer, labelled(label), {data.data, data.bytes});
}

TransferPtr Group::receive(int peer, const Label& label, Piece room) {
  check_message(peer, label);
  return messages_->receive(peer, labelled(label), {room.data, room.bytes});
}

TransferPtr Group::take(int peer, const Label& label) {
  check_message(peer, label);
  return messages_->take(peer, labelled(label));
}

TransferPtr Group::probe(int peer, const Label& label, bool only_now) {
  check_message(peer, label);
  return only_now ? messages_->probe_now(peer, label) : messages_->probe(peer, label);
}

void Group::when_over(const TransferPtr& transfer, std::function<void()> then) {
  messages_->when_over(transfer, std::move(then));
}

void Group::wait(const TransferPtr& transfer, double deadline, double timeout) {
  if (!transfer->done()) check_message(transfer->peer(), transfer->label());
  Wait wait(*this);
  if (transfer->label().awaited == Awaited::later && !transfer->over()) wait.enter(*transfer);
  guarded_message(transfer->peer(), transfer->label(), [&] {
    if (!is_over(transfer, deadline)) messages_->wait({&transfer, 1}, deadline, timeout);
  });
  wait.tell(*transfer);
}

// Returns whether it is done in time. Notes a long wait for readers of the status page.
bool Group::is_over(const TransferPtr& transfer, double until) {
  if (messages_->wait_until({&transfer, 1}, std::min(until, now() + quiet))) return true;
  if (now() >= until || transfer->label().purpose == Purpose::collective) return messages_->wait_until({&transfer, 1}, until);
  struct Noted {
    Progress& progress;
    ~Noted() { progress.await_no_more(); }
  } noted{channel_.progress()};
  while (!transfer->over() && now() < until) {
    note_wait(*transfer);
    if (messages_->wait_until({&transfer, 1}, std::min(until, now() + renewal))) return true;
  }
  return messages_->wait_until({&transfer, 1}, until);
}

void Group::note_wait(const Transfer& transfer) {
  const int peer = transfer.peer();
  if (peer == any_source) return;
  Label label = transfer.label();
  std::optional<std::uint64_t> tag = label.tag, instead;
  if (label.any_tag) tag.reset();
  if (!transfer.sending() && tag && label.purpose == Purpose::user) {
    label.any_tag = true;
    if (const TransferPtr other = messages_->probe_now(peer, label)) instead = other->header().tag;
  }
  const bool is_known = static_cast<std::size_t>(peer) < job_ranks_.size();
  const int number = is_known ? job_ranks_[static_cast<std::size_t>(peer)] : peer;
  if (number < 0) return;  // of another job
  channel_.progress().await(transfer.sending() ? OpKind::send : OpKind::recv, number, tag, instead);
}

bool Group::wait_for(const TransferPtr& transfer, double until) {
  if (!transfer->done()) check_message(transfer->peer(), transfer->label());
  bool is_done = false;
  Wait wait(*this);
  const bool is_wait = transfer->label().awaited == Awaited::later && now() < until;
  if (is_wait && !transfer->over()) wait.enter(*transfer);
  guarded_message(transfer->peer(), transfer->label(),
                  [&] { is_done = is_over(transfer, until); });
  wait.tell(*transfer);
  return is_done;
}

void Group::go_on(const TransferPtr& transfer, double deadline, double timeout) {
  guarded([&] { messages_->progress_in_background({&transfer, 1}, deadline, timeout); });
}

bool Group::wait_for(const JobPtr& job, double until) {
  channel_.check_fork();
  if (queue_.is_here() && !job->over()) throw bare(FailureKind::nested);
  const Queue::Awaiting here(queue_);
  Wait wait(*this);
  if (!job->over() && now() < until) wait.enter(*job);
  while (!job->wait_until(std::min(until, now() + nap))) {
    if (interrupted_()) throw Interrupted();
    if (now() >= until) return false;
    wait.tell(*job);
  }
  wait.tell(*job);
  return true;
}

// A caller that is interrupted while it waits for its own operation gives up the group.
void Group::finish(const JobPtr& job) {
  try {
    wait_for(job, std::numeric_limits<double>::infinity());
  } catch (const Interrupted&) {
    channel_.abort();
    let_end(job);
    throw;
  }
  job->result();
}

// Waits until the buffers of an aborted job are the caller's again, which is soon.
void Group::let_end(const JobPtr& job) {
  while (!job->wait_until(now() + nap)) {
  }
}

void Group::watch_neighbours() {
  std::vector<shm::Watched> others = channel_.watched();
  if (others.empty()) return;
  liveness_.emplace(channel_.segment().area(channel_.rank()).liveness, std::move(others), [this] {
    channel_.alarm();
    messages_->alarm();
  });
}

void Group::take_news() {
  if (const std::optional<Failure> told = control_->poll()) channel_.adopt(*told);
}

void Group::check() {
  if (control_) take_news();
  channel_.check_wait();
  check_neighbours();
}

// Fails the group for ranks of this node that have ended or left and that some thread here waits for.
void Group::check_neighbours() {
  std::vector<int> ended = channel_.dead();
  for (const int peer : messages_->awaited(true)) {
    const int index = neighbour(peer);
    if (index >= 0 && !contains(ended, index) && channel_.is_ending(index)) ended.push_back(index);
  }
  for (int index = 0; index < channel_.ranks(); ++index) {
    const bool is_dead = contains(ended, index);
    if (index == channel_.rank() || !(is_dead || channel_.has_left(index))) continue;
    const int peer = layout_.local()[static_cast<std::size_t>(index)];
    if (!contains(messages_->awaited(!is_dead), peer)) continue;
    Failure found = channel_.failure(is_dead ? FailureKind::peer_lost : FailureKind::peer_left, index);
    if (const std::optional<Label> label = messages_->awaits(peer)) {
      found.op = label->call.kind;
      found.sequence = label->sequence();
    }
    channel_.fail(found);
  }
}

PeerState Group::peer_state(int peer) {
  const int index = neighbour(peer);
  if (index < 0) return control_->peer_state(peer);
  if (contains(channel_.dead(), index)) return PeerState::lost;
  return channel_.has_left(index) ? PeerState::left : PeerState::present;
}

// Among ranks that wait for each other in a collective, the one to blame is the one that never came.
Failure Group::judge(Failure failure) {
  const bool is_message = failure.op == OpKind::send || failure.op == OpKind::recv;
  if (failure.kind != FailureKind::timeout || is_message) return failure;
  std::vector<int> absent = channel_.absent();
  if (!absent.empty()) failure.missing = std::move(absent);
  return failure;
}

std::vector<int> Group::absent_elsewhere(std::uint64_t sequence) {
  const std::vector<int> present = control_->roll_call(sequence, roll_call);
  take_news();  // a rank that has found it too need not have answered
  std::vector<int> absent;
  for (int peer = 0; peer < ranks_; ++peer) {
    if (neighbour(peer) < 0 && !contains(present, peer)) absent.push_back(peer);
  }
  return absent;
}

// A rank's place on this node; -1 for those of other nodes.
int Group::neighbour(int peer) const {
  const std::vector<int>& local = layout_.local();
  const auto found = std::lower_bound(local.begin(), local.end(), peer);
  return found != local.end() && *found == peer ? static_cast<int>(found - local.begin()) : -1;
}

void Group::abort() {
  if (is_fork()) return;
  channel_.abort();
  messages_->fail(channel_.failure(FailureKind::aborted, channel_.rank()));
}

// In a failed group, other nodes must receive the cause before they see this rank leave. The thread that found it may
// not have told all of them yet.
void Group::take_leave() {
  if (const std::optional<Failure> cause = channel_.cause()) control_->announce(*cause);
  control_->goodbye();
}

void Group::close() {
  if (is_fork()) return;
  if (queue_.is_here()) throw bare(FailureKind::nested);
  if (!queue_.idle()) abort();
  queue_.close();
  if (control_) take_leave();  // before the sockets close, so that the peers know why
  messages_->close();
  channel_.close();
  const std::lock_guard<std::mutex> alone(leaving_);
  liveness_.reset();
}

}  // namespace torsh
