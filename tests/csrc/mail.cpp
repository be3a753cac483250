#include "mail.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include "common/clock.hpp"
#include "random.hpp"

namespace torsh::test {
namespace {

struct Letter {
  int from, to;
  std::uint64_t tag;
  std::size_t bytes;
  std::size_t number;  // among all
};

// Between two ranks, letters of one tag are told apart by their order alone. With any source those
// of one tag are of one size, whoever sends them.
std::vector<Letter> letters(const Mail& mail, int ranks) {
  Random random(mail.seed);
  std::vector<Letter> all;
  for (std::size_t i = 0; i < mail.messages; ++i) {
    const int from = static_cast<int>(random.below(static_cast<std::size_t>(ranks)));
    const int to = (from + 1 + static_cast<int>(random.below(static_cast<std::size_t>(ranks) - 1))) % ranks;
    const std::uint64_t tag = 3 * mail.number + random.below(3);
    const std::size_t bytes = mail.any_source ? mixed(mail.seed + tag) % (mail.largest + 1)
                                              : random.below(random.one_in(2) ? 200 : mail.largest + 1);
    all.push_back({from, to, tag, bytes, i});
  }
  return all;
}

std::vector<std::byte> content(const Mail& mail, const Letter& letter) {
  std::vector<std::byte> bytes(letter.bytes);
  Random random(mail.seed ^ mixed(letter.number));
  for (std::byte& each : bytes) each = static_cast<std::byte>(random.next());
  return bytes;
}

Call call_of(OpKind kind, std::size_t bytes) { return Call{.kind = kind, .dtype = DType::uint8}.of_size(bytes); }

// One rank's letters under way. Their buffers stay until the messages are over.
class Desk {
 public:
  Desk(Member& member, const Mail& mail) : member_(member), mail_(mail), all_(letters(mail, member.ranks)) {}

  // Letters keep their order between each two ranks; who begins with what is shuffled otherwise.
  void post() {
    std::vector<const Letter*> in, out;
    for (const Letter& letter : all_) {
      if (letter.from == member_.rank) out.push_back(&letter);
      if (letter.to == member_.rank) in.push_back(&letter);
    }
    Random random(mail_.seed + static_cast<std::uint64_t>(member_.rank));
    std::size_t sent = 0, awaited = 0;
    data_.reserve(in.size() + out.size());
    while (sent < out.size() || awaited < in.size()) {
      const bool sends = awaited == in.size() || (sent < out.size() && random.one_in(2));
      sends ? send(*out[sent++]) : receive(*in[awaited++]);
    }
  }

  void complete(double timeout) {
    const double deadline = now() + timeout;
    Random random(mail_.seed ^ static_cast<std::uint64_t>(member_.rank));
    std::vector<TransferPtr> waiting = under_way_;
    while (!waiting.empty()) {
      std::swap(waiting[random.below(waiting.size())], waiting.back());
      await(waiting.back(), deadline, timeout);
      waiting.pop_back();
    }
  }

  // What came, in the order in which it was asked for.
  void check() {
    std::map<std::pair<int, std::uint64_t>, std::size_t> come;
    for (const auto& [transfer, bytes] : received_) {
      const auto key = std::pair(transfer->peer(), transfer->label().tag);
      const Letter* letter = letter_of(key.first, key.second, come[key]++);
      if (letter == nullptr) throw Wrong("a message came that nobody has sent");
      if (content(mail_, *letter) != *bytes) {
        throw Wrong("message " + std::to_string(letter->number) + " came as another, of mail " + std::to_string(mail_.seed));
      }
    }
  }

 private:
  void send(const Letter& letter) {
    data_.push_back(content(mail_, letter));
    const Call call = call_of(OpKind::send, letter.bytes);
    keep(member_.group.send(letter.to, {Purpose::user, letter.tag, call}, {data_.back().data(), letter.bytes}));
  }
  void receive(const Letter& letter) {
    data_.emplace_back(letter.bytes);
    const int peer = mail_.any_source ? any_source : letter.from;
    const Call call = call_of(OpKind::recv, letter.bytes);
    const TransferPtr transfer = member_.group.receive(peer, {Purpose::user, letter.tag, call}, {data_.back().data(), letter.bytes});
    received_.emplace_back(transfer, &data_.back());
    keep(transfer);
  }
  void keep(const TransferPtr& transfer) {
    under_way_.push_back(transfer);
    if (mail_.unattended) member_.group.go_on(transfer, now() + patience, patience);
  }
  void await(const TransferPtr& transfer, double deadline, double timeout) {
    if (mail_.unattended && member_.group.wait_for(transfer, now() + 0.001)) return;
    member_.group.wait(transfer, deadline, timeout);
  }
  const Letter* letter_of(int from, std::uint64_t tag, std::size_t nth) const {
    for (const Letter& letter : all_) {
      const bool fits = letter.from == from && letter.to == member_.rank && letter.tag == tag;
      if (fits && nth-- == 0) return &letter;
    }
    return nullptr;
  }

  Member& member_;
  const Mail& mail_;
  const std::vector<Letter> all_;
  std::vector<std::vector<std::byte>> data_;
  std::vector<TransferPtr> under_way_;
  std::vector<std::pair<TransferPtr, const std::vector<std::byte>*>> received_;
};

}  // namespace

void exchange(Member& member, const Mail& mail, double timeout) {
  Desk desk(member, mail);
  desk.post();
  desk.complete(timeout);
  desk.check();
}

}  // namespace torsh::test
